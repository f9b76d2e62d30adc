"""A stage with the ends of the path in its graph is called with images, and its classes are judged as logits are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.image_batches import table_of
from pipeline.compiler import driver
from pipeline.compiler.agreement import classes
from pipeline.compiler.ends import ByTable, Classes
from pipeline.measure.accuracy import as_logits
from pipeline.records.goals import Tolerance
from pipeline.records.request import Job, ModelSpec, StageSpec
from pipeline.stages.api import Runner, StageError, Workload
from pipeline.stages.common.compiled import request_of, runner_of
from pipeline.stages.common.ends import ends_of, stage_ends
from pipeline.worker import workload
from pipeline.worker.run_stage import run_stage
from tests.compiler.made_up_gpu import no_gpu, times
from tests.input_nets import SEVERAL
from tests.worker.jobs import EAGER, Recorder, job

__all__ = ["no_gpu"]  # a fixture
CPU = torch.device("cpu")
BOTH = {"uint8_in": True, "classes_out": True}


def build(workload: Workload, *, uint8_in: bool = False, classes_out: bool = False, spoilt: float = 0.0) -> Runner:
    """Build `fused` without a GPU; `spoilt` is added to the largest channel of each pixel of its logits."""
    ends = stage_ends(workload, uint8_in, classes_out)
    built = driver.build(request_of(workload, str(workload.folder), "never", []))
    assert built.call is not None
    network = built.call

    def spoils(*inputs: Tensor) -> Tensor:
        answer = network(*inputs)
        return answer.scatter_add(1, answer.argmax(1, keepdim=True), torch.full_like(answer[:, :1], spoilt))

    return runner_of(replace(built, run=spoils, call=spoils) if spoilt else built, workload, ends)


def tiny(asked: Job) -> Job:
    net = ModelSpec("unet", "models.unet.UNet", {"in_channels": 3, "classes": 2, "base": 8, "depth": 1})
    return replace(asked, data=replace(asked.data, size=16), model=net)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    run_stage(tiny(job(EAGER, root, "reference")), Recorder(0))
    return root


@pytest.fixture(autouse=True)
def candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "barred_on", lambda *_: None)
    times(monkeypatch, 3.0, 2.0)


def run_with(folder: Path, **options: Any) -> Recorder:
    tolerance = Tolerance(1e-2, 1e-3, "fp16")
    spec = StageSpec("fused", __name__, "fp16", "", ["cpu"], "", False, tolerance, options)
    line = Recorder(1)
    run_stage(tiny(job(spec, folder)), line)
    return line


def test_a_run_with_ends_is_judged_as_one_without(folder: Path) -> None:
    plain, mask = run_with(folder), folder / "fused" / "mask_0.png"
    wanted, plain_mask = plain.fields["accuracy"], mask.read_bytes()
    for options in (BOTH, {"classes_out": True}):
        line = run_with(folder, **options)
        assert (line.fields["status"], line.fields["reason"]) == ("ok", "")
        found = line.fields["accuracy"]
        assert (found.flipped_share, found.dice, found.images) == (wanted.flipped_share, wanted.dice, wanted.images)
        assert found.relative_l2 <= 2 * wanted.relative_l2
        assert not line.fields.get("warnings")
        assert line.fields["memory"] is not None
        assert line.fields["diagnostics"] is not None
        assert [name.replace("_", " ") for name in options] == line.fields["description"].split(", ")[-len(options) :]
        assert mask.read_bytes() == plain_mask


@pytest.mark.parametrize(("spoilt", "said"), [(-100.0, "logits differ"), (float("nan"), "NaN")])
def test_wrong_classes_and_logits_that_are_no_numbers_are_refused(spoilt: float, said: str, folder: Path) -> None:
    line = run_with(folder, **BOTH, spoilt=spoilt)
    assert line.fields["status"] == "inaccurate"
    assert said in line.fields["reason"]


@pytest.mark.parametrize("channels", [1, 2, 5])
def test_classes_become_the_reference_s_logits_with_these_classes(channels: int) -> None:
    logits, others = torch.randn(2, 2, channels, 4, 4).round(decimals=1)
    assert torch.equal(as_logits(Classes()(logits).float(), logits), logits)
    changed = as_logits(Classes()(others), logits)
    assert torch.equal(classes(changed), classes(others))
    assert float((changed - logits).norm()) <= 2 * float((others - logits).norm())
    nothing = torch.full((2, 4, 4), 255, dtype=torch.uint8)
    assert as_logits(nothing, logits).isnan().all()


def test_what_has_no_such_ends_is_refused_by_the_option_s_name(tmp_path: Path) -> None:
    work = workload.load(job(EAGER, tmp_path), None)
    assert stage_ends(work, True, True).in_words == ", uint8 in, classes out"
    _, drawn = next(iter(SEVERAL.items()))[1]
    several = {f"{number}": [part] for number, part in enumerate(drawn().tensors[1:])}
    for changed, ends, said in (
        ({"images": None}, (True, False), "stage.uint8_in=true: the run's inputs are tensors; leave it out"),
        ({"images": work.images.astype("uint16")}, (True, True), "stage.uint8_in=true: the run's inputs are uint16"),
        ({"has_masks": False}, (True, True), "stage.classes_out=true: the network answers with no classes"),
        ({"others": several}, (False, True), "stage.classes_out=true: only for networks of images"),
    ):
        with pytest.raises(StageError, match=said):
            stage_ends(replace(work, **changed), *ends)


@pytest.mark.parametrize("order", ["rgb", "bgr"])
def test_a_table_gives_what_the_rule_gives(order: Any, tmp_path: Path) -> None:
    work = workload.load(job(EAGER, tmp_path), None)
    contract = replace(work.contract, channel_order=order)
    images = torch.from_numpy(work.images[:2].copy())
    by_rule = ends_of(contract, True, False, 4, CPU).whole(nn.Identity())
    assert torch.equal(ByTable(table_of(contract, CPU), reverses=order == "bgr")(images), by_rule(images))
