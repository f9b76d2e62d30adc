"""The images that are asked for: normalisation, channels, labels and memory, each wrong one refused in a line."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pipeline.config.conversion import converted
from pipeline.config.data_request import DataKnobs, check_memory, meant_everywhere
from pipeline.config.data_request import read_data as read_knobs
from pipeline.config.goal_request import check_task
from pipeline.config.request_error import RequestError
from pipeline.devices.host import memory_bytes
from pipeline.inputs.input_contract import InputContract, LabelRules
from pipeline.records.goals import Task
from pipeline.records.request import DataSpec


def read_data(value: dict[str, Any]) -> DataSpec:
    return read_knobs(converted(value, DataKnobs, "data"))


def knobs(folder: Path | None = None, **typed: object) -> dict[str, Any]:
    """What conf/data/folder.yaml gives, or that of the samples, with what is typed."""
    own = {"name": "samples", "path": None, "labels": None, "size": 32, "batch_size": 2, "batches": 3}
    theirs = {"name": "folder", "path": str(folder), "labels": str(folder)} if folder else {}
    return {**own, **theirs, **typed}


def test_what_is_not_typed_is_what_was_always_done() -> None:
    """(x − 0.5) / 0.25 of three channels, PNGs of indices, 255 without a label."""
    found = read_data(knobs())
    assert found.contract == InputContract(3, "centred", (0.5,), (0.25,), None)
    assert found.label_rules == LabelRules("*.png", None, 255, ())


@pytest.mark.parametrize(
    ("typed", "contract"),
    [
        ({"normalize": "unit"}, InputContract(3, "unit", (0.0,), (1.0,))),
        ({"normalize": "imagenet"}, InputContract(3, "imagenet", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
        ({"normalize": "zscore", "channels": 1}, InputContract(1, "zscore", (), ())),
        ({"mean": 1, "std": 2, "scale": 4095}, InputContract(3, "own", (1.0,), (2.0,), 4095)),
        ({"mean": [1, 2, 3], "std": 2}, InputContract(3, "own", (1.0, 2.0, 3.0), (2.0,))),
    ],
)
def test_the_normalisation_is_the_users(typed: dict[str, Any], contract: InputContract) -> None:
    """By name, or by figures: one for all channels, or one each."""
    assert read_data(knobs(**typed)).contract == contract


def test_a_positive_value_is_no_longer_one_to_ignore(tmp_path: Path) -> None:
    """255 is ignored unless it is said to be the foreground."""
    assert read_data(knobs(tmp_path, positive=255)).label_rules == LabelRules(positive=255, ignore=None)
    assert read_data(knobs(tmp_path, positive=1)).label_rules == LabelRules(positive=1)
    assert read_data(knobs(tmp_path, ignore=-1)).label_rules == LabelRules(ignore=-1)
    colors = read_data(knobs(tmp_path, colors=[[0, 0, 0], "#ff8000"])).label_rules.colors
    assert colors == ((0, 0, 0), (255, 128, 0))


WRONG = [
    ({"mean": 0.5}, "data.mean: set data.mean and data.std together"),
    ({"mean": 0.5, "std": 0.5, "normalize": "zscore"}, "leave one out"),
    ({"mean": [1, 2], "std": 1}, "data.mean: 2 figures for data.channels=3; give one, or one for each channel"),
    (
        {"normalize": "imagenet", "channels": 1},
        "data.channels=1; give the figures of your training, such as data.mean=0.449 data.std=",
    ),
    ({"normalize": "imagnet"}, "data.normalize=imagnet: did you mean 'imagenet'?"),
    ({"mean": 0, "std": 0}, "data.std=0: expected float >= 1e-12"),
    ({"scale": -1.0}, "data.scale=-1.0: expected float >= 1e-12"),
    ({"scale": 1e-320}, "expected float >= 1e-12"),
    ({"mean": 1e300, "std": 1.0}, "data.mean=1e+300: expected float <= 1000000000000.0"),
    ({"mean": 0.0, "std": 1e-45}, "data.std="),
    ({"mean": "half", "std": 1}, "data.mean=half: expected float | array | null, got str"),
    ({"channels": 0}, "data.channels=0: expected int >= 1"),
    ({"channels": 4}, "data.channels=4: data=samples has images of 3 channels, or 1 for grey"),
    ({"positive": 255}, "data.positive=255: data=samples has images and labels of its own; add data=folder"),
    ({"path": "images"}, "data.path=images: data=samples has images and labels of its own; add data=folder"),
]
WRONG_OF_A_FOLDER = [
    ({"labels": None, "positive": 255}, "data.positive: there are no labels that it could be for"),
    ({"labels": None, "label_pattern": "*.tif"}, "data.label_pattern: there are no labels"),
    ({"label_pattern": "mask.png"}, "data.label_pattern=mask.png: expected a file name with one *"),
    ({"label_pattern": "*/*.png"}, "expected a file name with one *"),
    ({"colors": [[0, 0, 0], [255, 0, 300]]}, "data.colors: [255, 0, 300]: expected a colour such as"),
    ({"colors": [[0, 0, 0]]}, "two or more different colours"),
    ({"colors": ["#000000", "#ffffff"], "positive": 1}, "leave one of them out"),
    ({"positive": 3, "ignore": 3}, "data.ignore=3: data.positive makes that value class 1; leave one of them out"),
    ({"positive": -1}, "data.positive=-1: expected int >= 0"),
]


@pytest.mark.parametrize(("typed", "said"), [*WRONG, *WRONG_OF_A_FOLDER])
def test_a_wrong_knob_is_one_line(typed: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Nothing that was typed is passed over."""
    with pytest.raises(RequestError) as caught:
        read_data(knobs(tmp_path if (typed, said) in WRONG_OF_A_FOLDER else None, **typed))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_more_than_the_memory_is_refused_with_the_figure() -> None:
    """Three batches of 8 images of 1024×1024×3, in uint8 and fp32: 360 MiB."""
    asked = DataKnobs(name="samples", size=1024, batch_size=8, batches=3)
    check_memory(asked, 360 * 2**20)
    check_memory(replace(asked, size=None), 0)
    with pytest.raises(RequestError, match=r"data\.size=1024: 3 batches of 8 .* take 0\.3516 GiB .* has 0\.3506"):
        check_memory(asked, 359 * 2**20)


def test_a_containers_limit_counts_where_it_is_less(tmp_path: Path) -> None:
    """Version 2 of cgroups writes bytes, or "max"."""
    limit, nowhere = tmp_path / "memory.max", tmp_path / "nowhere"
    limit.write_text("4096\n")
    assert memory_bytes(limit) == 4096
    limit.write_text("max\n")
    assert memory_bytes(limit) == memory_bytes(nowhere) > 2**20


@pytest.mark.parametrize(
    ("name", "preset", "typed", "size"),
    [
        ("folder", "cpu", [], None),
        ("folder", "cpu", ["+data.size=256"], 256),
        ("folder", "smoke", [], 256),
        ("samples", "cpu", [], 256),
    ],
)
def test_a_folder_keeps_its_size_on_a_cpu_as_on_a_gpu(
    name: str, preset: str, typed: list[str], size: int | None
) -> None:
    """The preset that is taken without a word cuts the program's own images, and no one else's."""
    assert meant_everywhere({"name": name, "size": 256}, preset, typed)["size"] == size


def test_a_path_that_is_no_folder_says_what_it_is(tmp_path: Path) -> None:
    """A link to nothing, a file, a name that no system takes; the nearest name is never its own."""
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (tmp_path / "file").touch()
    for name, said in (("link", "a link that leads nowhere"), ("file", "a file"), ("a" * 5000, "File name too long")):
        with pytest.raises(RequestError, match=said):
            read_data({**knobs(tmp_path), "path": str(tmp_path / name)})


def of_tensors(folder: Path, **typed: object) -> dict[str, Any]:
    """What conf/data/tensors.yaml gives, with a file that is there, and with what is typed."""
    (folder / "inputs.safetensors").touch()
    path = str(folder / "inputs.safetensors")
    return {"name": "tensors", "path": path, "labels": None, "size": None, "batch_size": 2, "batches": 3, **typed}


def test_tensors_are_a_file_and_have_their_own_size(tmp_path: Path) -> None:
    """Labels are the name of a tensor, no folder; a preset's size isn't for them."""
    found = read_data(of_tensors(tmp_path, labels="right", inputs=["image", "mask"]))
    assert (found.labels, found.inputs, found.size) == ("right", ("image", "mask"), None)
    assert meant_everywhere(of_tensors(tmp_path, size=64), "smoke", [])["size"] is None
    for typed, said in (
        ({"path": None}, "data.path: name the file of your tensors, such as data.path=inputs.safetensors"),
        ({"path": str(tmp_path / "input.safetensors")}, "no such file; did you mean "),
        ({"size": 64}, "data.size=64: data=tensors takes tensors as they are; leave it out"),
    ):
        with pytest.raises(RequestError) as caught:
            read_data(of_tensors(tmp_path, **typed))
        assert said in str(caught.value)


def test_volumes_are_windows_of_three_sides(tmp_path: Path) -> None:
    """The depth is the size unless it is typed; a window that can't fit is refused with its figure."""
    volumes = {"name": "volume", "label_pattern": "*", "channels": 1, "normalize": "zscore"}
    asked = knobs(tmp_path, **volumes, labels=None, size=64, depth=32)
    assert (read_data(asked).size, read_data(asked).depth) == (64, 32)
    with pytest.raises(RequestError, match=r"data\.depth=32: it goes with data\.size, of data=volume"):
        read_data({**asked, "size": None})
    with pytest.raises(RequestError, match="volumes of 5000×5000×5000×1 take"):
        check_memory(DataKnobs(name="volume", path="x", size=5000, batch_size=1, batches=3, channels=1), 64 * 2**30)


TASKS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"name": "diffusion"}, {}, "data=samples gives a net one input, and a denoising loop counts a second one"),
    ({"name": "regression", "data_range": 0}, {}, "task.data_range=0: expected float > 0.0"),
    ({"name": "regresion"}, {}, "task.name=regresion: did you mean 'regression'?"),
    ({"name": "diffusion", "steps": 2000}, {}, "task.steps=2000: expected int <= 1000"),
]


@pytest.mark.parametrize(("task", "data", "said"), TASKS)
def test_a_task_that_cannot_be_judged_is_refused(task: dict[str, Any], data: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_task(converted(task, Task, "task"), read_data(knobs(**data)))
    assert said in str(caught.value)


def test_labels_go_with_their_task(tmp_path: Path) -> None:
    """Masks are for segmentation; what is right of a regression net is a tensor; a diffusion net has none."""
    folder, tensors = read_data(knobs(tmp_path)), read_data(of_tensors(tmp_path, labels="right"))
    check_task(Task("regression"), tensors)
    for data, name, said in (
        (folder, "regression", "isn't judged by masks; leave it out, or give what is right as a tensor: data=tensors"),
        (tensors, "diffusion", "task=diffusion is judged by its own loop in fp32; leave it out"),
    ):
        with pytest.raises(RequestError, match=said):
            check_task(converted({"name": name}, Task, "task"), data)
