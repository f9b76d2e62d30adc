"""What a stage's build returns is a Runner whose fields are what they say, or is refused by the field's name."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipeline.records.diagnostics import SearchCount
from pipeline.records.run_record import Execution
from pipeline.records.samples import Calibration, ImageSet
from pipeline.stages import Runner, StageError
from pipeline.stages.api import Workload
from pipeline.worker.bench import entries
from pipeline.worker.contract import answer_fault, check_left_out, checked_runner
from tests.fooling_stages import FAULTS, RETURNS

RUNNER = Runner(lambda batch: batch, "a test's own")
BATCH = torch.zeros(1, 3, 4, 4)


@pytest.mark.parametrize(
    ("built", "said"),
    [
        (None, "build of mine returned None; a pipeline.stages.api.Runner is wanted"),
        (Runner, "build of mine returned the class Runner"),
        (lambda batch: batch, "build of mine returned a function"),
        (replace(RUNNER, run=None), "Runner.run is None; a function of a batch is wanted"),  # type: ignore[arg-type]
        (replace(RUNNER, details={"a": [torch.ones(1)]}), "Runner.details/a/0 is a torch.Tensor; JSON values are"),
        (replace(RUNNER, execution=Execution("fp99")), "Runner.execution: Invalid enum value 'fp99'"),  # type: ignore[arg-type]
        (replace(RUNNER, searched=(1,)), "Runner.searched: Expected `object`, got `int`"),  # type: ignore[arg-type]
        (replace(RUNNER, searched=(SearchCount("me", "problems", 1),)), "Runner.searched: Invalid enum value"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_runner_is_refused(built: object, said: str) -> None:
    with pytest.raises(StageError) as refused:
        checked_runner(built, "mine")
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)
    assert refused.value.kind == "broken contract"


def test_a_runner_that_keeps_to_it_is_taken_as_it_is() -> None:
    details = {"a": [1, 2.5, "text", None, True], "b": {"c": []}}
    runner, lost = checked_runner(replace(RUNNER, details=details, execution=Execution("fp16")), "mine")
    assert (runner.details, lost) == (details, [])


def test_numbers_that_are_none_become_null_and_are_named() -> None:
    details = {"loss": math.nan, "tries": [1.0, (math.inf,)]}
    runner, lost = checked_runner(replace(RUNNER, details=details), "mine")
    assert runner.details == {"loss": None, "tries": [1.0, [None]]}
    assert lost == ["details/loss", "details/tries/1/0"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda batch: batch * 2, ""),
        (lambda batch: (batch * 2).half(), ""),
        (lambda batch: (batch * 2)[:, :2], ""),
        (lambda batch: [batch * 2], "a call returned a list; a torch.Tensor of logits is wanted"),
        (lambda batch: torch.nn.Parameter(batch * 2), "a call returned a torch.nn.parameter.Parameter"),
        (lambda batch: torch.quantize_per_tensor(batch, 0.1, 0, torch.qint8), "its logits are torch.qint8"),
        (lambda batch: batch.view(-1), "its logits lie in the memory of its input"),
    ],
)
def test_an_answer_is_a_plain_tensor_of_its_own(answer: Callable[[Tensor], object], said: str) -> None:
    assert answer_fault(answer(BATCH), BATCH).startswith(said)
    assert bool(answer_fault(answer(BATCH), BATCH)) is bool(said)


@pytest.mark.parametrize("fault", RETURNS)
def test_no_injected_fault_returns_anything_else(fault: str) -> None:
    """Each is named by what it returns in place of a tensor, or by what of it is wrong."""
    run = FAULTS[fault].make(torch.nn.Conv2d(3, 2, 1))
    with torch.inference_mode():
        assert FAULTS[fault].said in answer_fault(run(BATCH), BATCH)


def test_only_what_was_given_to_calibrate_on_is_no_evaluation_image(tmp_path: Path) -> None:
    """The batches that are verified are never given, and who calibrates on none leaves none out."""
    work = Workload(nn.Identity(), [BATCH] * 3, BATCH.device, tmp_path, verified=3, judged=6)
    used = Calibration(ImageSet(1, []), None, choice_apart=True, apart=True)
    check_left_out(replace(RUNNER, left_out=(3, 5), calibration=used), work)
    for wrong, calibration in (((2,), used), ((6,), used), ((-1,), used), ((4,), None)):
        with pytest.raises(StageError, match=f"left_out names batch {wrong[0]},"):
            check_left_out(replace(RUNNER, left_out=wrong, calibration=calibration), work)


def test_what_a_stage_saves_are_files_of_the_run(tmp_path: Path) -> None:
    stage = tmp_path / "run" / "mine"
    stage.mkdir(parents=True)
    (stage / "net.pt").write_bytes(b"a net")
    (found,) = entries([stage / "net.pt"], stage.parent)
    assert (found.path, found.size_bytes) == ("mine/net.pt", 5)
    for saved in (stage / "none", stage, Path("/etc/hostname")):
        with pytest.raises(StageError, match=f"Runner.save gave {saved}, which is no file in the run's folder"):
            entries([saved], stage.parent)
