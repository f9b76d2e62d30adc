"""A stage with a fault that happens in practice is refused, by name, in one line."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from pipeline.records.goals import Tolerance
from pipeline.records.request import Job, StageSpec
from pipeline.stages import Runner, StageError, eager
from pipeline.stages.api import Workload
from pipeline.worker import workload
from pipeline.worker.failures import failure_of
from pipeline.worker.run_stage import prepare, run_stage
from tests.fooling_stages import FAULTS, RETURNS
from tests.process_state import own_switches
from tests.worker.jobs import EAGER, Recorder, job

# A bf16 stage is within it, and no other picture's answer is.
LOOSE = Tolerance(0.03, 1.0, "a test's own")


def small(stage: StageSpec, folder: Path, role: str = "stage", device: str = "cpu") -> Job:
    """Return the job on images of 32×32, whose answers take a few milliseconds."""
    made = job(stage, folder, role)
    data, plan = replace(made.data, size=32), replace(made.plan, profile_calls=0)
    return replace(made, data=data, device=device, plan=plan)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run whose reference is on disk, and whose images are read once."""
    folder = tmp_path_factory.mktemp("fooled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workload, "images_of", cache(workload.images_of))
        run_stage(small(EAGER, folder, role="reference"), Recorder(0))
        yield folder


def outcome(fault: str, folder: Path, device: str = "cpu") -> tuple[str, str | None, str]:
    """Status, kind and reason of what came of a fault, as its worker reports them."""
    stage = replace(EAGER, name=fault, target="tests.fooling_stages", options={"fault": fault}, tolerance=LOOSE)
    line, threads = Recorder(8), torch.get_num_threads()
    try:
        with own_switches():
            asked = small(stage, folder, device=device)
            profiled = int(FAULTS[fault].gpu_only)
            run_stage(replace(asked, plan=replace(asked.plan, profile_calls=profiled)), line)
    except Exception as error:  # noqa: BLE001 - as `pipeline.worker.__main__` does
        return "failed", *failure_of(error)
    finally:
        torch.set_num_threads(threads)
    return line.fields["status"], line.fields["failure"], line.fields["reason"]


@pytest.mark.parametrize(
    "fault",
    [
        name
        for name, fault in FAULTS.items()
        if not (fault.gpu_only or fault.compiles or name in RETURNS[1:])  # those are all refused in one place
    ],
)
def test_it_is_refused_for_what_it_does(fault: str, run_folder: Path) -> None:
    """Status, kind and what was seen; honest ones pass."""
    status, failure, reason = outcome(fault, run_folder)
    wanted = FAULTS[fault]
    assert (status, failure) == (wanted.status, wanted.failure), reason
    assert wanted.said in reason
    assert "\n" not in reason
    assert len(reason) < 200


@pytest.mark.gpu
@pytest.mark.parametrize("fault", [name for name, fault in FAULTS.items() if fault.gpu_only])
def test_a_fault_of_a_gpu_is_refused(fault: str, tmp_path: Path) -> None:
    """As on a CPU; one whose clocks disagree is not ranked."""
    run_stage(small(EAGER, tmp_path, "reference", "cuda"), Recorder(0))
    status, failure, reason = outcome(fault, tmp_path, "cuda")
    assert (status, failure) == (FAULTS[fault].status, FAULTS[fault].failure), reason
    assert FAULTS[fault].said in reason


def test_details_that_are_no_numbers_are_null_in_the_record_with_a_note(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = eager.build
    monkeypatch.setattr(eager, "build", lambda work: replace(honest(work), details={"loss": math.nan}))
    bench = prepare(small(replace(EAGER, name="notes"), run_folder))
    with own_switches():
        bench.build()
    (note,) = bench.warnings
    assert (note.code, note.text) == ("not a number", "details/loss: NaN or infinite, kept as null")
    assert bench.runner.details == {"loss": None}


def test_what_a_build_changes_is_refused_before_anything_is_measured(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = eager.build

    def build(work: Workload) -> Runner:
        torch.set_grad_enabled(False)
        return honest(work)

    monkeypatch.setattr(eager, "build", build)
    bench = prepare(small(replace(EAGER, name="switches"), run_folder))
    try:
        with own_switches(), pytest.raises(StageError, match="gradients was True, is False") as refused:
            bench.build()
    finally:
        torch.set_grad_enabled(True)
    assert refused.value.kind == "broken contract"
