"""The network of a request: options from a library's folder, weights by a key, and what is refused before torch."""

import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conf import ROOT, child
from models.weights_file import check
from pipeline import targets
from pipeline.config.goal_request import constraint, points_note, read_accuracy, read_goal
from pipeline.config.model_request import check_target, read_model
from pipeline.config.request_error import RequestError
from pipeline.errors import CheckpointError
from pipeline.records.goals import AccuracyLimits
from tests.config.test_load import asked as goals_of
from tests.config.test_load import composed

SMP = {"_model_class": "FPN", "encoder_name": "resnet18", "classes": 3, "encoder_weights": "imagenet"}
LATENTS = {"_class_name": "UNet2DModel", "in_channels": 4, "norm_eps": 1e-05, "_diffusers_version": "0"}
DEFINITION = {"_target_": "SegResNet", "spatial_dims": 3, "in_channels": 1}
FILES: dict[str, dict[str, object]] = {
    "smp": {"config.json": SMP, "model.safetensors": ""},
    "diffusers": {"config.json": LATENTS, "diffusion_pytorch_model.safetensors": ""},
    "monai": {"configs/inference.json": {"network_def": DEFINITION}, "models/model.pt": ""},
    "nnunet": {"../plans.json": {}, "checkpoint_final.pth": ""},
}
TAKEN: dict[str, dict[str, Any]] = {
    "smp": {"architecture": "FPN", "encoder_name": "resnet18", "classes": 3, "encoder_weights": None},
    "diffusers": {"timestep": 10, "in_channels": 4, "norm_eps": 1e-05},
    "monai": {"net": "SegResNet", "spatial_dims": 3, "in_channels": 1},
    "nnunet": {"configuration": "2d"},
}
TARGETS = {"nnunet": "models.nnunet_nets.nnunet_net"}
DEFAULTS: dict[str, dict[str, object]] = {"diffusers": {"timestep": 10}, "nnunet": {"configuration": "2d"}}


def folder_of(place: Path, files: dict[str, object]) -> Path:
    folder = place / "saved"
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def asked(name: str, folder: Path) -> dict[str, object]:
    target = TARGETS.get(name, f"models.library_nets.{name}_net")
    return {"name": name, "target": target, "options": DEFAULTS.get(name, {}), "checkpoint": str(folder)}


@pytest.mark.parametrize("name", FILES)
def test_a_library_s_folder_sets_the_options(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, FILES[name])
    model = read_model(asked(name, folder))
    plans = {"plans": str(tmp_path / "saved" / "..")} if name == "nnunet" else {}
    found = {**model.options, **({"plans": plans["plans"]} if plans else {})}
    assert found == {**TAKEN[name], **plans}
    assert model.checkpoint == str(folder)
    assert "sets the network's options" in capsys.readouterr().err


def test_a_typed_option_that_the_folder_replaces_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, {"config.json": "\ufeff" + json.dumps(SMP), "model.safetensors": ""})
    read_model({**asked("smp", folder), "options": {"classes": 5, "encoder_name": "resnet18"}})
    assert capsys.readouterr().err.endswith("sets the network's options: classes=3, not 5\n")


@pytest.mark.parametrize(
    ("name", "files", "said"),
    [
        ("diffusers", {"config.json": {"_class_name": "AutoencoderKL"}}, "model.target=diffusers.AutoencoderKL"),
        ("monai", {"configs/inference.json": {"network_def": {"channels": "$[1]"}}}, "channels is computed by code"),
        ("smp", {"config.json": "{"}, "config.json: can't be read"),
        ("smp", {"config.json": "[1]"}, "config.json: no mapping of keys to values"),
    ],
)
def test_options_of_another_network_are_refused(name: str, files: dict[str, object], said: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=re.escape(said)):
        read_model(asked(name, folder_of(tmp_path, FILES[name] | files)))


def test_a_folder_without_weights_names_the_files_in_it(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"epochs/last.ckpt": "", "epochs/best.ckpt": ""})
    named = " or ".join(f"model.checkpoint={folder}/epochs/{name}.ckpt" for name in ("best", "last"))
    with pytest.raises(CheckpointError) as refused:
        read_model(asked("smp", folder))
    assert str(refused.value).endswith(f"is a folder, not a file of weights; name the file in it: {named}")


CHECKPOINT = "model.checkpoint=models/weights/unet_small.safetensors"


@pytest.mark.parametrize(
    ("text", "figure", "sign", "limit"),
    [
        ("memory<8GiB", "memory", "<", 8 * 2**30),
        ("memory <= 500 MB", "memory", "<=", 5e8),
        ("p99<20ms", "p99", "<", 0.02),
        ("host_p50<1.5e3us", "host_p50", "<", 1.5e-3),
        ("throughput>=200images/s", "throughput", ">=", 200.0),
        ("energy<.5J", "energy", "<", 0.5),
        ("cost<12", "cost", "<", 12.0),
    ],
)
def test_a_bound_is_read_with_its_unit(text: str, figure: str, sign: str, limit: float) -> None:
    found = constraint(text)
    assert (found.figure, found.sign, found.limit, found.text) == (figure, sign, pytest.approx(limit), text)


def limits(value: dict[str, Any], labelled: bool = True, trained: bool = True) -> AccuracyLimits:
    return read_accuracy(value, labelled, trained)


@pytest.mark.parametrize(
    ("read", "given", "said"),
    [
        (constraint, ["memry<8GiB"], "did you mean 'memory'?"),
        (constraint, ["memory<8Gib"], "did you mean 'GiB'?"),
        (constraint, ["p99<20"], "p99 needs a unit"),
        (constraint, ["memory=8GiB"], "such as memory<8GiB or p99<20ms"),
        (constraint, ["memory<-1GiB"], "such as memory<8GiB"),
        (constraint, ["cost<3EUR"], "it takes none"),
        (constraint, ["p99<0ms"], "a number above 0"),
        (constraint, ["p99<1e999s"], "a number above 0"),
        (constraint, ["dice>0.9"], "accuracy.max_dice_drop"),
        (constraint, [""], "such as memory<8GiB"),
        (read_goal, ["latancy", [], None], "did you mean 'latency'?"),
        (read_goal, ["cost", [], None], "report.gpu_hour_price"),
        (read_goal, ["latency", ["cost<3"], None], "report.gpu_hour_price"),
        (read_goal, ["memory", 20, None], "expected array"),
        (limits, [{"max_dice_drop": 0.5}, False], "use accuracy.min_agreement"),
        (limits, [{"min_dice": 0.9}, False], "use accuracy.min_agreement"),
        (limits, [{"min_agreement": 0.99}, True, False], "model.checkpoint"),
        (limits, [{"min_agreement": 99.9}], "expected float <= 1.0"),
        (limits, [{"max_psnr_drop": 0.1}], "task=segmentation is not judged by it; it takes max_dice_drop"),
        (limits, [{"max_dice_drop": -1}], "expected float >= 0.0"),
        (limits, [{"max_dice_drop": float("nan")}], "expected float >= 0.0"),
        (limits, [{"max_dice_drops": 1}], "did you mean 'max_dice_drop'?"),
        (limits, [{"replace_flipped_share": True}], "set a limit"),
    ],
)
def test_a_goal_or_limit_that_cannot_be_is_one_line(read: Callable[..., Any], given: list[Any], said: str) -> None:
    with pytest.raises(RequestError, match=re.escape(said)) as refused:
        read(*given)
    assert "\n" not in str(refused.value)


def test_a_run_takes_them_from_the_command_line() -> None:
    """Without any, the winner is the fastest and the tolerances alone decide."""
    plain = goals_of(composed("stage=half"))
    assert (plain.accuracy, plain.goal.objective, plain.goal.subject_to) == (AccuracyLimits(), "throughput", [])
    words = ("stage=half", CHECKPOINT, "objective=memory", "subject_to=['p99<20ms']", "accuracy.max_dice_drop=0.5")
    run = goals_of(composed(*words))
    assert (run.accuracy.max_dice_drop, run.goal.objective, run.goal.subject_to[0].limit) == (0.5, "memory", 0.02)
    assert run.stages[0].tolerance == plain.stages[0].tolerance
    replaced = goals_of(composed(*words, "accuracy.replace_flipped_share=true")).stages[0].tolerance
    assert (replaced.flipped_share, replaced.relative_l2) == (1.0, plain.stages[0].tolerance.relative_l2)
    assert "replace_flipped_share" in replaced.reason


@pytest.mark.parametrize(
    ("bounds", "refused"),
    [
        (["memory<8GiB", "memory>9GiB"], True),
        (["p99<20ms", "p99>=0.02s"], True),
        (["p99<=20ms", "p99>=0.02s"], False),
        (["memory<8GiB", "p99>9s"], False),
    ],
)
def test_bounds_that_no_figure_keeps_are_refused(bounds: list[str], refused: bool) -> None:
    """Before hours of measuring end without a winner; one bound needs no list."""
    assert read_goal("memory", bounds[0], None) == read_goal("memory", bounds[:1], None)
    if not refused:
        assert len(read_goal("throughput", bounds, None).subject_to) == 2
        return
    with pytest.raises(RequestError, match="can keep both") as error:
        read_goal("throughput", bounds, None)
    assert all(bound in str(error.value) for bound in bounds)


@pytest.mark.parametrize(
    ("drop", "said"), [(0.005, "accuracy.max_dice_drop=0.005 is in points, 0.00005 of 1; "), (0.06, ""), (None, "")]
)
def test_a_limit_that_may_be_meant_as_a_share_is_noted(drop: float | None, said: str) -> None:
    """Dice is 0 to 1 elsewhere: half a point given as 0.005 would reject all but fp32."""
    note = points_note(AccuracyLimits(max_dice_drop=drop))
    assert said in note
    assert bool(note) == bool(said)


FLOATS = {"dtype": "F32", "shape": [2, 1, 1, 1], "data_offsets": [0, 8]}
TORN: dict[str, tuple[bytes, str]] = {
    "no header": (struct.pack("<Q", 0) + b"{}", "or cut off (Error while deserializing header"),
    "no JSON": (struct.pack("<Q", 2) + b"{]", "no file of weights that can be read"),
    "a list": (struct.pack("<Q", 2) + b"[]", "no file of weights that can be read"),
    "no tensors": (struct.pack("<Q", 2) + b"{}", "no tensors in it; save model.state_dict()"),
}


def weights(path: Path, tensors: dict[str, Any], data: bytes = bytes(8)) -> str:
    header = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return str(path)


@pytest.mark.parametrize("kind", TORN)
def test_a_torn_header_is_told(kind: str, tmp_path: Path) -> None:
    content, said = TORN[kind]
    (path := tmp_path / "net.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=re.escape(said)):
        check(str(path))


def test_weights_that_a_network_cannot_compute_with_are_told(tmp_path: Path) -> None:
    """Integers in a convolution, fewer bytes than the header lists; a counter may be an integer."""
    path = tmp_path / "net.safetensors"
    counter = {"dtype": "I64", "shape": [], "data_offsets": [8, 16]}
    check(weights(path, {"a.weight": FLOATS, "a.num_batches_tracked": counter}, bytes(16)))
    with pytest.raises(CheckpointError, match=r"a\.weight is I32, and a convolution computes with floats"):
        check(weights(path, {"a.weight": {**FLOATS, "dtype": "I32"}}))
    with pytest.raises(CheckpointError, match=r"or cut off .*incomplete metadata, file not fully covered"):
        check(weights(path, {"a.weight": FLOATS}, bytes(7)))


@pytest.mark.parametrize("target", ["..unet.UNet", "models.unet.UNet; import os", "a b.c", ""])
def test_what_is_no_dotted_name_is_refused(target: str) -> None:
    with pytest.raises(RequestError, match="it is no dotted name; name my_package"):
        check_target("model.target", target, "my_package.MyNet")


def test_a_users_models_py_must_have_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`models.unet.UNet` is the program's network, whatever lies in the current folder."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "unet.py").touch()
    assert targets.hidden("models.unet.UNet") is None
    monkeypatch.chdir(tmp_path)
    assert targets.hidden("models.unet.UNet") == Path("models/unet.py")
    assert targets.hidden("models.mine.MyNet") is None


def test_installed_the_programs_modules_lie_in_one_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target names them as in a checkout; a name that the program doesn't have is the user's."""
    assert targets.imported_as("pipeline.stages.half") == "pipeline.stages.half"
    monkeypatch.setattr(targets, "PACKAGE", "unet_ladder")
    assert targets.imported_as("models.unet") == "unet_ladder.models.unet"
    assert targets.imported_as("models.mine") == "models.mine"
    assert targets.imported_as("my_package.nets") == "my_package.nets"
    monkeypatch.setattr(targets, "ROOT", ROOT / "pipeline")
    assert targets.imported_as("pipeline.stages.half") == "unet_ladder.stages.half"


def test_modules_of_the_current_folder_hide_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker doesn't look there first: the folder is the last place where a target is looked up."""
    (tmp_path / "a_target_of_mine.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [place for place in sys.path if place])
    assert targets.import_target("a_target_of_mine").__file__ == str(tmp_path / "a_target_of_mine.py")
    assert sys.path[-1] == str(tmp_path)
    del sys.modules["a_target_of_mine"]


def test_a_child_does_not_look_into_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text("raise SystemExit('the wrong module')")
    started = child("pipeline.predict", "--help")
    done = subprocess.run(**started, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
