"""The requested images: normalisation, channels, labels, tensors, volumes and memory; each wrong knob is one line."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.config import data_request
from pipeline.config.conversion import converted
from pipeline.config.data_request import DataKnobs, check_memory
from pipeline.config.data_request import read_data as read_knobs
from pipeline.config.goal_request import check_task
from pipeline.config.request_error import RequestError
from pipeline.devices.host import memory_bytes
from pipeline.inputs.input_contract import InputContract, LabelRules
from pipeline.records.goals import Task
from pipeline.records.request import DataSpec

CT: dict[str, Any] = {"normalize": "ct", "low": -100, "high": 200.0, "mean": 10, "std": 50.0}
CT_CONTRACT = InputContract(1, "ct", (10.0,), (50.0,), 1.0, (-100.0,), (200.0,))


def knobs(folder: Path | None = None, **typed: object) -> dict[str, Any]:
    """The knobs of conf/data/folder.yaml, or of the samples, with those that are typed."""
    own = {"name": "samples", "path": None, "labels": None, "size": 32, "batch_size": 2, "batches": 3}
    theirs = {"name": "folder", "path": str(folder), "labels": str(folder)} if folder else {}
    return {**own, **theirs, **typed}


def tensors(folder: Path, **typed: object) -> dict[str, Any]:
    """The knobs of conf/data/tensors.yaml, with a file that exists."""
    (folder / "inputs.safetensors").touch()
    path = str(folder / "inputs.safetensors")
    return {"name": "tensors", "path": path, "labels": None, "size": None, "batch_size": 2, "batches": 3, **typed}


def volumes(folder: Path, **typed: object) -> dict[str, Any]:
    own = {"name": "volume", "labels": None, "size": None, "channels": 1, "scale": 1.0, "label_pattern": "*"}
    return {**knobs(folder), **own, **typed}


def read_data(value: dict[str, Any]) -> DataSpec:
    return read_knobs(converted(value, DataKnobs, "data"))


@pytest.mark.parametrize(
    ("typed", "contract"),
    [
        ({}, InputContract(3, "centred", (0.5,), (0.25,), None)),
        ({"normalize": "unit"}, InputContract(3, "unit", (0.0,), (1.0,))),
        ({"normalize": "imagenet"}, InputContract(3, "imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
        ({"normalize": "zscore", "channels": 1}, InputContract(1, "zscore", (), ())),
        ({"mean": 1, "std": 2, "scale": 4095}, InputContract(3, "own", (1.0,), (2.0,), 4095)),
        ({"mean": [1, 2, 3], "std": 2, "scale": 1}, InputContract(3, "own", (1.0, 2.0, 3.0), (2.0,), 1.0)),
        ({"channel_order": "bgr", "fill": 0}, InputContract(channel_order="bgr", fill=0.0)),
        ({**CT, "channels": 1, "scale": 1.0}, CT_CONTRACT),
    ],
)
def test_the_normalisation_is_the_users(typed: dict[str, Any], contract: InputContract) -> None:
    assert read_data(knobs(**typed)).contract == contract


@pytest.mark.parametrize(
    ("typed", "rules"),
    [
        ({}, LabelRules("*.png", None, 255, ())),
        ({"positive": 255}, LabelRules(positive=255, ignore=None)),
        ({"positive": 1}, LabelRules(positive=1)),
        ({"ignore": -1}, LabelRules(ignore=-1)),
        ({"colors": [[0, 0, 0], "#ff8000"]}, LabelRules(colors=((0, 0, 0), (255, 128, 0)))),
        ({"label_map": "image_*:mask_*.png"}, LabelRules("mask_*.png", image="image_*")),
    ],
)
def test_labels_are_read_by_the_users_rules(typed: dict[str, Any], rules: LabelRules, tmp_path: Path) -> None:
    """255 is ignored unless it is said to be the foreground."""
    assert read_data(knobs(tmp_path, **typed)).label_rules == rules


@pytest.mark.parametrize(
    ("data", "size", "sides"),
    [
        ("folder", 64, (64, 64)),
        ("folder", [320, 480], (320, 480)),
        ("folder", [64, 64], (64, 64)),
        ("volume", [40, 96, 80], (40, 96, 80)),
        ("volume", [40, 80, 80], (40, 80, 80)),
        ("volume", None, ()),
    ],
)
def test_a_window_may_have_three_lengths(data: str, size: object, sides: tuple[int, ...], tmp_path: Path) -> None:
    made = {"folder": knobs, "volume": volumes}[data]
    asked = read_data(made(tmp_path, name=data, size=size))
    assert asked.sides == sides
    assert asked.size == (sides[-1] if sides else None)


SAMPLES = [
    ({"mean": 0.5}, "data.mean: set data.mean and data.std together"),
    ({"mean": 0.5, "std": 0.5, "normalize": "zscore"}, "leave one out"),
    ({"mean": [1, 2], "std": 1}, "data.mean: 2 figures for data.channels=3; give one, or one for each channel"),
    ({"normalize": "imagenet", "channels": 1}, "data.channels=1; give the figures of your training"),
    ({"normalize": "imagnet"}, "data.normalize=imagnet: did you mean 'imagenet'?"),
    ({"mean": 0, "std": 0}, "data.std=0: expected float >= 1e-12"),
    ({"mean": 1e300, "std": 1.0}, "data.mean=1e+300: expected float <= 1000000000000.0"),
    ({"mean": "half", "std": 1}, "data.mean=half: expected float | array | null, got str"),
    ({"channels": 4}, "data.channels=4: data=samples has 3 channels, or 1 for grey"),
    ({"positive": 255}, "data.positive=255: data=samples takes none; leave it out, or add data=folder"),
    ({"path": "images"}, "data.path=images: data=samples takes none; leave it out, or add data=folder"),
    ({"normalize": "ct", "channels": 1}, "measured for data=volume only; for data=samples give data.low"),
    ({"mean": [123.675, 116.28, 103.53], "std": 58.4}, "data.scale=1 takes values as the files hold them"),
    ({"mean": [123.675, 116.28, 103.53], "std": 58.4}, "or data.mean=[0.485,0.456,0.406] data.std=0.229"),
    ({"channel_order": "bgr", "channels": 1}, "data.channel_order=bgr: it is for data.channels=3, and here are 1"),
    ({"channel_order": "grb"}, "data.channel_order=grb: did you mean"),
    ({"images": 9}, "data.images=9: data=samples takes none; leave it out, or add data=generated"),
    ({"name": "generated", "classes": 3}, "data.classes=3: "),
    ({"size": [64, 64, 64]}, "data.size=[64, 64, 64]: expected one number, or [height,width]"),
]
FOLDER = [
    ({"path": "pipeline/compar"}, "no such folder; did you mean pipeline/compiler?"),
    ({"labels": None, "positive": 255}, "data.positive: there are no labels for it"),
    ({"label_pattern": "*/*.png"}, "data.label_pattern=*/*.png: expected a file name with one *"),
    ({"colors": [[0, 0, 0], [255, 0, 300]]}, "data.colors.1.2=300: expected int <= 255"),
    ({"colors": ["#000000", "red"]}, "data.colors.1=red: expected str matching regex"),
    ({"colors": [[0, 0, 0]]}, "two or more different colours"),
    ({"colors": ["#000000", "#ffffff"], "positive": 1}, "leave one of them out"),
    ({"positive": 3, "ignore": 3}, "data.ignore=3: data.positive makes that value class 1; leave one of them out"),
    ({"path": "a" * 5000}, "File name too long"),
    ({"path": "/dev/null"}, "data.path=/dev/null: not a folder"),
    ({"label_map": "image_*"}, "data.label_map=image_*: expected IMAGE:LABEL, two names with as many * each, such as"),
    ({"label_map": "a*:b*", "label_pattern": "*.tif"}, "data.label_map names the labels already"),
    ({"axes": "xyz"}, "data.axes=xyz: data=folder takes none; leave it out, or add data=volume"),
]
VOLUMES = [
    ({"normalize": "ct", "low": 0}, "data.high: data.normalize=ct takes data.low, data.high, data.mean, data.std toge"),
    ({**CT, "low": 200}, "data.low=200.0: expected less than data.high=200.0"),
    ({"low": 0, "high": 1, "mean": 0, "std": 1}, "data.low: it goes with data.normalize=ct"),
    ({**CT, "high": [1, 2]}, "data.high: 2 figures for data.channels=1"),
    ({"depth": 32}, "data.depth=32: it goes with data.size"),
    ({"depth": 32, "size": [32, 64, 96]}, "data.depth=32: data.size=[32, 64, 96] has a depth; leave one out"),
    ({"size": [64, 96]}, "data.size=[64, 96]: expected one number, or [depth,height,width]"),
]
TENSORS = [
    ({"path": None}, "data.path: name the file of your tensors, such as data.path=inputs.safetensors"),
    ({"path": "/dev/null"}, "data.path=/dev/null: not a file or folder"),
    ({"path": "input.safetensors"}, "no such file or folder"),
    ({"size": 64}, "data.size=64: data=tensors takes none; leave it out"),
    ({"inputs": ["a", "b", "a"]}, "a is given twice"),
]


def samples(_: Path, **typed: Any) -> dict[str, Any]:
    return knobs(**typed)


CASES: list[tuple[Any, list[Any]]] = [(samples, SAMPLES), (knobs, FOLDER), (volumes, VOLUMES), (tensors, TENSORS)]


@pytest.mark.parametrize(("made", "typed", "said"), [(made, *case) for made, cases in CASES for case in cases])
def test_a_wrong_knob_is_one_line(made: Any, typed: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=re.escape(said)) as caught:
        read_data(made(tmp_path, **typed))
    assert "\n" not in str(caught.value)


def test_data_of_a_user_s_own_name_are_those_of_a_folder(tmp_path: Path) -> None:
    assert read_data(knobs(tmp_path, name="mine", positive=1)).label_rules.positive == 1


def test_more_than_the_memory_is_refused_with_the_figure() -> None:
    """Three batches of 8 images of 1024×1024×3, in uint8 and fp32: 360 MiB."""
    asked = DataSpec("samples", size=1024, batch_size=8)
    check_memory(asked, 360 * 2**20)
    check_memory(DataSpec("samples", batch_size=8), 0)
    with pytest.raises(RequestError, match=r"data\.size=1024: 3 batches of 8 .* take 0\.3516 GiB .* has 0\.3506"):
        check_memory(asked, 359 * 2**20)
    with pytest.raises(RequestError, match=r"data\.images=100000 of 256×256×3 take 91\.55 GiB"):
        check_memory(DataSpec("generated", size=256, images=10**5), memory=64 * 2**30)
    with pytest.raises(RequestError, match="volumes of 5000×5000×5000×1 take"):
        check_memory(DataSpec("volume", size=5000, contract=InputContract(1)), memory=64 * 2**30)


def test_a_containers_limit_counts_if_it_is_less(tmp_path: Path) -> None:
    """Version 2 of cgroups writes bytes, or "max"; version 1 has another file."""
    limit, nowhere, older = tmp_path / "memory.max", tmp_path / "nowhere", tmp_path / "older"
    limit.write_text("4096\n")
    assert memory_bytes(limit) == 4096
    limit.write_text("max\n")
    assert memory_bytes(limit, older) == memory_bytes(nowhere, older) > 2**20
    older.write_text("1048576\n")
    assert memory_bytes(limit, older) == 2**20


def test_tensors_and_volumes_have_knobs_of_their_own(tmp_path: Path) -> None:
    """Labels of tensors are the name of a tensor; the depth of a volume's window is its size unless it is typed."""
    found = read_data(tensors(tmp_path, labels="right", inputs=["image", "mask"]))
    assert (found.labels, found.inputs, found.size) == ("right", ("image", "mask"), None)
    window = read_data(volumes(tmp_path, normalize="zscore", size=64, depth=32))
    assert (window.size, window.depth) == (64, 32)


@pytest.mark.parametrize(
    ("task", "made", "said"),
    [
        ({"name": "diffusion"}, samples, "data=samples gives one input, and a denoising loop needs a second"),
        ({"name": "regression", "data_range": 0}, tensors, "task.data_range=0: expected float > 0.0"),
        ({"name": "regresion"}, tensors, "task.name=regresion: did you mean 'regression'?"),
        ({"name": "diffusion", "steps": 2000}, tensors, "task.steps=2000: expected int <= 1000"),
        ({"name": "regression"}, knobs, "is not judged by masks; leave it out"),
        ({"name": "diffusion"}, lambda folder: tensors(folder, labels="right"), "task=diffusion is judged by its own"),
    ],
)
def test_a_task_that_cannot_be_judged_is_refused(task: dict[str, Any], made: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=re.escape(said)):
        check_task(converted(task, Task, "task"), read_data(made(tmp_path)))


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Two volumes of 10,560 values each, and labels of every other voxel."""
    for name in ("scans", "masks"):
        (tmp_path / name).mkdir()
    for number in range(2):
        values = 1000.0 * number + np.arange(20 * 22 * 24, dtype=np.float32).reshape(20, 22, 24)
        np.save(tmp_path / "scans" / f"{number}.npy", values)
        np.save(tmp_path / "masks" / f"{number}.npy", (values % 2).astype(np.uint8))
    return tmp_path / "scans"


def test_figures_of_ct_are_measured_on_the_foreground(scans: Path) -> None:
    """On all values without labels, or if no label is above 0."""
    every = np.concatenate([np.load(file).ravel() for file in sorted(scans.iterdir())]).astype(np.float64)

    def right(values: np.ndarray) -> InputContract:
        low, high = np.percentile(values, [0.5, 99.5])
        return InputContract(1, "ct", (values.mean(),), (values.std(),), 1.0, (float(low),), (float(high),))

    masks = scans.parent / "masks"
    assert read_data(volumes(scans, normalize="ct")).contract == right(every)
    assert read_data(volumes(scans, labels=str(masks), normalize="ct")).contract == right(every[every % 2 == 1])
    for file in masks.iterdir():
        np.save(file, np.zeros((20, 22, 24), np.uint8))
    assert read_data(volumes(scans, labels=str(masks), normalize="ct")).contract == right(every)


def test_figures_that_cannot_be_measured_are_refused(scans: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One value only, a file that is no volume, too little memory."""
    for file in scans.iterdir():
        np.save(file, np.full((2, 2, 2), 7.0))
    with pytest.raises(RequestError, match=r"has one value only, 7; give data\.low"):
        read_data(volumes(scans, normalize="ct"))
    (scans / "0.npy").write_bytes(b"no volume")
    with pytest.raises(RequestError, match=r"0\.npy: not a volume that can be read"):
        read_data(volumes(scans, normalize="ct"))
    monkeypatch.setattr(data_request, "memory_bytes", lambda: 1)
    with pytest.raises(RequestError, match=r"GiB and this machine has .*; give data\.low"):
        read_data(volumes(scans, normalize="ct"))
