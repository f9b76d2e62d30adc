"""One stage from build to record, in this process: a wrong answer is seen, named, and never measured."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline.stages import Skip, StageError
from pipeline.worker.failures import failure_of
from pipeline.worker.run_stage import run_stage
from tests.worker.jobs import EAGER, Recorder, job


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run_stage(job(EAGER, folder, role="reference"), Recorder(0))
    return folder


def test_the_baseline_describes_the_run(run_folder: Path) -> None:
    line = Recorder(0)
    run_stage(job(EAGER, run_folder, role="reference"), line)
    reference = line.run_fields["reference"]
    assert line.run_fields["environment"].device == "cpu"
    assert reference.flops_per_image > 1e6
    assert 0 < reference.fp64_relative_l2 < 1e-4
    assert reference.repeat_relative_l2 < 1e-6
    assert (run_folder / "reference" / "mask_0.png").exists()


def test_a_right_stage_goes_through_every_phase_in_order(run_folder: Path) -> None:
    line = Recorder()
    run_stage(job(EAGER, run_folder), line)
    assert line.phases == [
        "start", "build", "verify", "warmup", "check", "latencies", "host path", "profile", "observe", "explain",
        "export",
    ]  # fmt: skip
    assert line.fields["status"] == "ok"
    assert line.fields["accuracy"].flipped_share == 0
    assert len(line.samples) == 3
    assert all(taken.per_call > 0 for taken in line.samples)
    assert len(line.fields["latencies"]) == 2
    assert line.fields["memory"].weights_bytes > 0
    assert line.fields["profile"].launches_per_call > 10
    assert (run_folder / "eager" / "trace.json.gz").exists()


def test_a_stage_without_a_build_function_is_named(run_folder: Path) -> None:
    stage = replace(EAGER, name="odd", target="tests.no_such_module")
    with pytest.raises(StageError, match=r"tests\.no_such_module has no build function"):
        run_stage(job(stage, run_folder), Recorder())


class CompilationError(Exception):
    def __init__(self, inner: Exception) -> None:
        super().__init__("backend failed")
        self.inner_exception = inner


def test_a_warning_that_became_an_error_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its text is a library's advice, as Inductor's own imports give; whoever set the variable reads what it did."""
    error = RuntimeError("backend raised")
    error.__cause__ = DeprecationWarning("`torch.jit.script_method` is deprecated.")
    told = "DeprecationWarning: `torch.jit.script_method` is deprecated."
    monkeypatch.delenv("PYTHONWARNINGS", raising=False)
    assert failure_of(error.__cause__) == ("error", told)
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    head = "PYTHONWARNINGS=error makes errors of warnings: "
    assert failure_of(error.__cause__) == ("error", f"{head}{told}")
    assert failure_of(error)[1].startswith(f"{head}RuntimeError: ")
    assert failure_of(RuntimeError("backend raised")) == ("error", "RuntimeError: backend raised")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EOFError(), "error"),
        (CompilationError(torch.OutOfMemoryError("no more")), "out of memory"),
        (FileNotFoundError("no such file: runs/out of memory/net.pt"), "error"),
        (RuntimeError("the file 'out of memory.pt' is torn"), "error"),
        (ModuleNotFoundError("No module named 'triton'"), "missing library"),
        (NotImplementedError("no such kernel"), "unsupported"),
        (StageError("landed elsewhere", "wrong device"), "wrong device"),
        (Skip("needs a GPU"), "unsupported"),
    ],
)
def test_the_kind_of_a_failure_is_told_by_the_error_and_not_by_words_in_a_path(error: Exception, kind: str) -> None:
    assert failure_of(error)[0] == kind
