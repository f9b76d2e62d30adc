"""The run as the user asked for it, and its stages' options, read from their source: each wrong value is one line."""

import copy
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from pipeline.config.load import check_threads, read
from pipeline.config.model_request import check_net
from pipeline.config.request_error import RequestError
from pipeline.config.stage_options import check_options, lacks_build, signature_of
from pipeline.errors import CheckpointError
from pipeline.records.request import DataSpec, ModelSpec, RunConfig

CONF = Path(__file__).resolve().parents[2] / "conf"


def composed(*overrides: str) -> dict[str, Any]:
    return copy.deepcopy(composed_once(overrides))


@cache
def composed_once(overrides: tuple[str, ...]) -> dict[str, Any]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        value: Any = OmegaConf.to_container(compose("config", list(overrides)), resolve=True)
    return value


def asked(config: dict[str, Any], device: str = "cpu") -> RunConfig:
    return read(config, device, {name: stage_file(name) for name in ("eager", "amp")})


def stage_file(name: str) -> Any:
    return OmegaConf.to_container(OmegaConf.load(CONF / "stage" / f"{name}.yaml"))


def stage_files() -> list[str]:
    return sorted(path.stem for path in (CONF / "stage").glob("*.yaml"))


@pytest.mark.parametrize("name", stage_files())
def test_every_stage_file_composes_into_a_run(name: str) -> None:
    """Each file of conf/stage gives stages with every option of their `build`, and a reason for the tolerance."""
    stages = asked(composed(f"stage={name}")).stages
    assert stages
    for stage in stages:
        signature = signature_of(stage.target)
        assert stage.options.keys() == signature.options.keys()
        assert len(stage.tolerance.reason) > 20


@pytest.mark.parametrize("group", ["model", "data", "task", "measure", "preset"])
def test_every_other_file_composes(group: str, tmp_path: Path) -> None:
    """Each file of the other groups gives a run, with what it needs filled in."""
    file, tensors = tmp_path / "net.pt2", tmp_path / "inputs.safetensors"
    for made in (file, tensors):
        made.touch()
    given = ["data=tensors", f"data.path={tensors}"]
    needed = {
        "custom": ["model.target=my.Net"], "file": [f"model.file={file}"], "folder": [f"data.path={tmp_path}"],
        "volume": [f"data.path={tmp_path}"], "tensors": given[1:], "diffusion": given,
    }  # fmt: skip
    for path in sorted((CONF / group).glob("*.yaml")):
        assert asked(composed(f"{group}={path.stem}", "stage=eager", *needed.get(path.stem, []))).stages


def test_a_gpus_baseline_is_autocast_with_eager_beside_it() -> None:
    for device, baseline, names in (("cuda", "amp", ["eager", "compile"]), ("cpu", "eager", ["compile"])):
        found = asked(composed("stage=compile"), device)
        assert (found.baseline.name, found.eager.name) == (baseline, "eager")
        assert [stage.name for stage in found.stages] == names
    assert "added by the run" in asked(composed("stage=compile"), "cuda").stages[0].adds


def test_eager_is_not_added_twice_nor_where_it_is_unwanted() -> None:
    for words, name in ((["stage=eager"], "eager"), (["stage=half", "eager_beside=false"], "half")):
        assert [stage.name for stage in asked(composed(*words), "cuda").stages] == [name]
    ladder = [stage.name for stage in asked(composed("stage=ladder"), "cuda").stages]
    assert ladder.count("eager") == 1


def test_the_ladder_lists_every_stage_file_in_order() -> None:
    """The ladder begins at the baseline, all else follows it in `everything`, and each rung says what it adds."""
    stages = asked(composed("stage=everything")).stages
    ladder = asked(composed("stage=ladder")).stages
    assert stages[: len(ladder)] == ladder
    assert stages[0].name == "eager"
    lists = {name for name in stage_files() if "rungs" in OmegaConf.load(CONF / "stage" / f"{name}.yaml")}
    assert {stage.name for stage in stages} == set(stage_files()) - lists
    assert all(stage.adds for stage in stages)


def test_what_the_user_types_wins_over_the_preset() -> None:
    assert asked(composed("preset=cpu", "stage=eager")).model.name == "unet_small"
    typed = asked(composed("preset=cpu", "stage=eager", "model=unet", "data.size=96"))
    assert (typed.model.name, typed.data.size) == ("unet", 96)


WRONG = [
    ("data", "batch_size", 0, "data.batch_size=0: expected int >= 1"),
    ("data", "batch_size", "8", "data.batch_size=8: expected int, got str; it is a text, as in quotes or by oc.env;"),
    ("data", "batches", 2, "data.batches=2: expected int >= 3"),
    ("data", "bathces", 3, "data.bathces: no such key; did you mean 'batches'?"),
    ("folder", "path", "no_such_folder", "data.path=no_such_folder: no such folder"),
    ("measure", "half_width", -0.1, "measure.half_width=-0.1: expected float >= 0.0"),
    ("measure", "half_width", 10**400, "(401 characters): number out of range"),
    ("measure", "aa_pairs", True, "measure.aa_pairs=true: expected int, got bool"),
    ("measure", "interim_analyses", [], "measure.interim_analyses=[]: expected array of length >= 1"),
    ("measure", "interim_analyses", [6, 0], "measure.interim_analyses.1=0: expected int >= 1"),
    ("stage", "name", "../up", "a stage's name is a folder's"),
    ("stage", "name", "reference", "stage.name=reference: the run has a file or folder of that name"),
    ("stage", "name", "Baseline", "try my_Baseline"),
    ("stage", "name", "a" * 65, "at most 64 letters"),
    ("stage", "tolerance", None, "stage.tolerance=null: expected object, got null"),
    ("stage", "tolerance", {"relative_l2": 1e-3}, "stage.tolerance.flipped_share: not set"),
    ("stage", "tolerance", {"relative_l2": 1, "flips": 2}, "stage.tolerance.flips: no such key; did you mean 'flipped"),
    ("stage", "tolerance", {"relative_l2": 1.0, "flipped_share": 0.0, "reason": ""}, "relative_l2=1.0: expected < 1"),
    ("stage", "target", "pipeline.errors", "stage.target=pipeline.errors: "),
    ("stage", "target", "tests.conftest", "stage.target=tests.conftest: the module has no function build"),
    ("stage", "devices", "cpu", "stage.devices=cpu: expected array, got str"),
    ("stage", "devices", ["gpu"], "stage.devices.0=gpu: did you mean 'cpu'?"),
    ("stage", "freezing", "no", "stage.freezing=no: expected bool, got str"),
    ("stage", "dynamic", 3, "stage.dynamic=3: expected bool | null, got int"),
    ("stage", "mode", "max-autotun", "stage.mode=max-autotun: did you mean 'max-autotune'?"),
    ("ladder", "mode", "default", "stage.mode: a ladder has rungs only; name one of them: stage.rungs.NAME.mode"),
    ("ladder", "rungs", 5, "stage.rungs=5: expected object, got int"),
    ("ladder", "rungs", {}, "stage.rungs: no rung is left"),
    ("ladder", "rungs", {"half": None}, "stage.rungs"),
    ("model", "chekpoint", "x.pt", "model.chekpoint: no such key; did you mean 'checkpoint'?"),
    ("model", "name", "file", "model.file: name the file of your network"),
    ("model", "checkpoint_key", "ema", "model.checkpoint_key=ema: it goes with model.checkpoint=FILE"),
    ("model", "target", None, "model.target: name the class of your network"),
    ("model", "options", 5, "model.options=5: expected object, got int"),
    ("model", "options", {"bas": 4}, "model.options.bas: no option of models.unet.UNet; did you mean 'base'?"),
    ("model", "options", {"upsampling": "cubic"}, "choose one of: transposed, bilinear"),
    ("", "threads", 0, "threads=0: expected int >= 1"),
    ("", "seed", -1, "seed=-1: expected int >= 0"),
    ("", "seed", 10**23, "seed=100000000000000000000000: expected int <= 9223372036854775807"),
    ("", "threads", 10**6, "threads=1000000: this program may use "),
    ("", "constraint", {"dice": 1}, "constraint: no such key; did you mean 'strict'?"),
    ("", "bacth", 4, "bacth: no such key; choose one of: "),
    ("", "stage", None, "stage=null: expected object, got null"),
    ("", "gpu_busy", "maybe", "gpu_busy=maybe: choose one of: wait, refuse, share"),
    ("", "resume_despite", ["weather"], "resume_despite.0=weather: "),
    ("", "resume_despite", ["code"], "resume_despite: name the run to go on with"),
    ("", "report", {"target_p99_ms": 0}, "report.target_p99_ms=0: expected float > 0.0"),
    ("ladder.rungs.amp", "dtype", "xyz", "stage.rungs.amp.dtype=xyz: choose one of: auto, fp16, bf16"),
    ("ladder.rungs.fp8", "budget", "xyz", "expected float, got str"),
]


@pytest.mark.parametrize(("group", "key", "value", "said"), WRONG)
def test_a_wrong_value_is_one_line(group: str, key: str, value: Any, said: str) -> None:
    """Of a key at the top, in a group, or of a stage's option, which its build is annotated with."""
    root, *within = group.split(".")
    lists = {"folder": ("data", ["data=folder", "stage=eager"]), "ladder": ("stage", ["stage=ladder"])}
    root, words = lists.get(root, (root, ["stage=compile"]))
    place = config = composed(*words)
    for name in filter(None, [root, *within]):
        place = place[name]
    place[key] = value
    with pytest.raises(RequestError, match=re.escape(said)) as caught:
        asked(config)
    assert "\n" not in str(caught.value)


def test_what_is_missing_or_twice_there_is_named() -> None:
    config = composed("stage=eager")
    del config["device"]
    with pytest.raises(RequestError, match=r"^device: not set$"):
        asked(config)
    config = composed("stage=eager")
    config["stage"] |= {"name": "faulty", "target": "tests.fault_stages"}
    with pytest.raises(RequestError, match=r"^stage\.fault: .* needs it, and nothing sets it; add '\+stage\.fault=…'$"):
        asked(config)
    config = composed("stage=ladder")
    config["stage"]["rungs"]["half"]["name"] = "eager"
    with pytest.raises(RequestError, match="two rungs are called 'eager'"):
        asked(config)


def test_a_folder_whose_name_is_a_number_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra's parser makes 2026 a number."""
    (tmp_path / "2026").mkdir()
    monkeypatch.chdir(tmp_path)
    assert asked(composed("data=folder", "data.path=2026", "stage=eager")).data.path == "2026"


def test_whether_a_net_is_trained_is_what_the_user_says() -> None:
    for words, trained in (([], True), (["model.trained=false"], False), (["model.checkpoint=null"], False)):
        config = composed("preset=cpu", "stage=eager", *words)
        assert asked(config).model.is_trained is trained
    brought = composed("preset=cpu", "stage=eager", "model.checkpoint=null", "model.trained=true")
    assert asked(brought).model.is_trained


@pytest.mark.parametrize(("there", "may_use"), [({0, 3}, "2 processors"), ({7}, "1 processor")])
def test_more_threads_than_cores_are_refused(there: set[int], may_use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: there, raising=False)
    with pytest.raises(RequestError, match=f"^threads=1000: this program may use {may_use}; expected at most"):
        check_threads(1000)
    check_threads(len(there))
    check_threads(None)


def test_channels_go_together() -> None:
    """With a network of ours, whose option is known; another's may mean anything."""
    images = DataSpec("samples", None, None, size=64, batch_size=2, batches=3)
    for target, channels in (("models.unet.UNet", 3), ("yours.Net", 4)):
        check_net(ModelSpec("a net", target, {"in_channels": channels}, None), images)
    with pytest.raises(RequestError, match=r"model\.options\.in_channels=4: images have data\.channels=3"):
        check_net(ModelSpec("a net", "models.unet.UNet", {"in_channels": 4}, None), images)


@pytest.mark.parametrize(
    ("name", "said"),
    [("net.onnx", "weights are read from .safetensors"), ("gone.pt", "no such"), ("net.pth.tar", "; call it .pt")],
)
def test_a_file_of_weights_is_looked_at_before_anything_starts(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"\x08")
    torch.save({}, tmp_path / "net.pth.tar")
    with pytest.raises(CheckpointError, match=re.escape(said)):
        asked(composed("stage=eager", f"model.checkpoint={tmp_path / name}"))


@pytest.mark.parametrize(("model", "key"), [("unet", "classes"), ("monai", "out_channels"), ("smp", "classes")])
def test_a_network_has_the_classes_of_drawn_images_unless_another_number_is_typed(model: str, key: str) -> None:
    for words, classes in (([], 2), (["data=generated"], 4), (["data=generated", f"model.options.{key}=6"], 6)):
        assert composed(f"model={model}", *words)["model"]["options"][key] == classes


README = """
from pipeline.stages import Runner


def build(workload, *, gain: float = 1.0):
    return Runner(run=workload.model, description="what really runs, in a line")
"""

WAYS = """
import typing
from pathlib import Path
from typing import Literal, Optional, Union

from .beside import Near
from kinds import Dtype as Precision

Own = Literal["a", "b"]
Circle = Circle


def build(
    workload, gain: float, *, plain: bool = True, own: Own = "a", own_or_none: Own | None = None,
    imported: Precision = "fp16", union: Precision | Literal["fp32"] = "fp32", optional: Optional[str] = None,
    old: Union[int, str] = 1, lists: list[int] | list[str] = [], names: list[str] = [],
    dotted: typing.Literal[1, 2] = 1, near: Near = -1,
    strange: Path = None, bare=None, circle: Circle = None, **more,
): ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where Python finds modules, none of which survives being imported."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine").mkdir()
    bomb = "raise SystemExit('imported')\n"
    (tmp_path / "mine" / "__init__.py").write_text(bomb)
    (tmp_path / "mine" / "beside.py").write_text(bomb + "from typing import Literal\nNear = Literal[-1, 0]\n")
    (tmp_path / "kinds.py").write_text(bomb + "from typing import Literal\nDtype = Literal['fp16', 'bf16']\n")
    (tmp_path / "mine" / "stage.py").write_text(bomb + WAYS)
    return tmp_path


def check(module: str, **options: object) -> None:
    check_options(options, signature_of(module), "stage", module)


def test_every_way_of_writing_an_annotation_is_read(folder: Path) -> None:
    signature = signature_of("mine.stage")
    dtype, own, near = Literal["fp16", "bf16"], Literal["a", "b"], Literal[-1, 0]
    assert signature.options == {
        "gain": float, "plain": bool, "own": own, "own_or_none": own | None, "imported": dtype,
        "union": dtype | Literal["fp32"], "optional": str | None, "old": int | str, "lists": list[int] | list[str],
        "names": list[str], "dotted": Literal[1, 2], "near": near, "strange": Any, "bare": Any, "circle": Any,
    }  # fmt: skip
    assert signature.required == ["gain"]
    check("mine.stage", gain=1, lists=["a"])
    assert signature.takes_any


def test_a_build_that_another_module_defines_is_found(folder: Path) -> None:
    (folder / "again.py").write_text("try:\n    from mine.stage import build\nexcept ImportError:\n    raise\n")
    assert signature_of("again") == signature_of("mine.stage")


@pytest.mark.parametrize(
    "source", [None, "def build(:\n", "x = 1\n", "build = lambda workload: None\n", "from nowhere import build\n"]
)
def test_what_no_source_shows_is_left_to_the_stage(folder: Path, source: str | None) -> None:
    """No such module, no Python, no `build`, or none that is a function: the worker will say what is wrong."""
    if source is not None:
        (folder / "odd.py").write_text(source)
    assert signature_of("odd") is None
    check("odd", anything=object)


def test_a_user_s_stage_is_checked_as_the_project_s_are(folder: Path) -> None:
    (folder / "my_stage.py").write_text(README)
    check("my_stage", gain=2)
    with pytest.raises(RequestError, match=r"^stage\.gain=loud: expected float, got str$"):
        check("my_stage", gain="loud")
    with pytest.raises(RequestError, match=r"^stage\.gian: no option of my_stage; did you mean 'gain'\?$"):
        check("my_stage", gian=2.0)
    with pytest.raises(RequestError, match=r"^stage\.x: no option of pipeline\.stages\.eager; it takes none$"):
        check("pipeline.stages.eager", x=1)


@pytest.mark.parametrize(
    ("source", "lacking"),
    [
        ("def train(workload): ...", True),
        ("from os import path", True),
        ("from beside import *", False),
        ("def __getattr__(name): ...", False),
        ("build = print", False),
    ],
)
def test_a_module_without_build_is_told_before_anything_runs(source: str, lacking: bool, folder: Path) -> None:
    (folder / "plain.py").write_text(source, encoding="utf-8")
    assert lacks_build("plain") is lacking
