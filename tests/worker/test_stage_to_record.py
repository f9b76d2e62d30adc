"""One stage from build to record; one with a fault that happens in practice is refused by name in one line."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipeline.records.diagnostics import SearchCount
from pipeline.records.goals import Tolerance
from pipeline.records.run_record import Execution
from pipeline.records.samples import Calibration, ImageSet
from pipeline.stages import Runner, Skip, StageError, eager
from pipeline.stages.api import Workload
from pipeline.worker import workload
from pipeline.worker.bench import entries
from pipeline.worker.contract import answer_fault, check_left_out, checked_runner
from pipeline.worker.failures import failure_of
from pipeline.worker.run_stage import prepare, run_stage
from tests.fooling_stages import FAULTS
from tests.process_state import own_switches
from tests.worker import jobs
from tests.worker.jobs import EAGER, Recorder, job, ran

# A bf16 stage is within it, and no other picture's answer is.
LOOSE = Tolerance(0.03, 1.0, "a test's own")
small = partial(jobs.small, size=32)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("fooled")
    with pytest.MonkeyPatch.context() as patch:
        load = workload.images_from
        patch.setattr(workload, "images_from", cache(lambda data: cache(load(data))))
        ran(small(EAGER, folder, role="reference"), 0)
        yield folder


def outcome(fault: str, folder: Path, device: str = "cpu") -> tuple[str, str | None, str]:
    """Status, kind and reason of what came of a fault, as its worker reports them."""
    stage = replace(EAGER, name=fault, target="tests.fooling_stages", options={"fault": fault}, tolerance=LOOSE)
    line, threads = Recorder(8), torch.get_num_threads()
    try:
        with own_switches():
            asked = small(stage, folder)
            profiled = int(FAULTS[fault].gpu_only)
            run_stage(replace(asked, device=device, plan=replace(asked.plan, profile_calls=profiled)), line)
    except Exception as error:  # noqa: BLE001 - as `pipeline.worker.__main__` does
        return "failed", *failure_of(error)
    finally:
        torch.set_num_threads(threads)
    if FAULTS[fault].said in ("one class", "NaN", "shape", "logits differ by"):
        assert not line.samples, "a stage that is known to be wrong was timed"
    return line.fields["status"], line.fields["failure"], line.fields["reason"]


@pytest.mark.parametrize("fault", [name for name, fault in FAULTS.items() if not fault.gpu_only])
def test_it_is_refused_for_what_it_does(fault: str, run_folder: Path) -> None:
    status, failure, reason = outcome(fault, run_folder)
    wanted = FAULTS[fault]
    assert (status, failure) == (wanted.status, wanted.failure), reason
    assert wanted.said in reason
    assert "\n" not in reason
    assert len(reason) < 200


@pytest.mark.gpu
@pytest.mark.parametrize("fault", [name for name, fault in FAULTS.items() if fault.gpu_only])
def test_a_fault_of_a_gpu_is_refused(fault: str, tmp_path: Path) -> None:
    with own_switches():
        ran(replace(small(EAGER, tmp_path, "reference"), device="cuda"), 0)
    status, failure, reason = outcome(fault, tmp_path, "cuda")
    assert (status, failure) == (FAULTS[fault].status, FAULTS[fault].failure), reason
    assert FAULTS[fault].said in reason


def test_details_that_are_no_numbers_are_null_and_noted(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = eager.build
    kept = {"a": [1, 2.5, "text", None, True], "b": {"c": []}}
    details = {"loss": math.nan, "tries": [1.0, (math.inf,)], **kept}
    monkeypatch.setattr(eager, "build", lambda work: replace(honest(work), details=details))
    bench = prepare(small(replace(EAGER, name="notes"), run_folder))
    with own_switches():
        bench.build()
    (note,) = bench.warnings
    assert note.code == "not a number"
    assert note.text == "details/loss, details/tries/1/0: NaN or infinite, kept as null"
    assert bench.runner.details == {"loss": None, "tries": [1.0, [None]], **kept}


def test_what_a_build_changes_is_refused_before_measuring(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda batch: batch * 2, ""),
        (lambda batch: (batch * 2).half(), ""),
        (lambda batch: (batch * 2)[:, :2], ""),
        (lambda batch: [batch * 2], "it answers with a list; it must give a plain torch.Tensor"),
        (lambda _: None, "it answers with None"),
        (lambda batch: torch.nn.Parameter(batch * 2), "it answers with a torch.nn.parameter.Parameter"),
        (lambda batch: torch.quantize_per_tensor(batch, 0.1, 0, torch.qint8), "it answers in torch.qint8"),
        (lambda batch: batch[:, :2], "its logits lie in the memory of its input"),
        (lambda batch: batch.view(-1), "its logits lie in the memory of its input"),
    ],
)
def test_an_answer_is_a_plain_tensor_of_its_own(answer: Callable[[Tensor], object], said: str) -> None:
    assert answer_fault(answer(BATCH), BATCH).startswith(said)
    assert bool(answer_fault(answer(BATCH), BATCH)) is bool(said)


def test_only_what_was_given_to_calibrate_on_is_no_evaluation_image(tmp_path: Path) -> None:
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


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recorder]:
    folder = tmp_path_factory.mktemp("run")
    return folder, ran(job(EAGER, folder, role="reference"), 0)


def test_the_baseline_describes_the_run(described: tuple[Path, Recorder]) -> None:
    folder, line = described
    reference = line.run_fields["reference"]
    assert line.run_fields["environment"].device == "cpu"
    assert reference.flops_per_image > 1e6
    assert 0 < reference.fp64_relative_l2 < 1e-4
    assert reference.repeat_relative_l2 < 1e-6
    assert (folder / "reference" / "mask_0.png").exists()


def test_a_right_stage_goes_through_every_phase_in_order(described: tuple[Path, Recorder]) -> None:
    folder = described[0]
    line = ran(job(EAGER, folder))
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
    assert (folder / "eager" / "trace.json.gz").exists()


def test_a_stage_without_a_build_function_is_named(run_folder: Path) -> None:
    stage = replace(EAGER, name="odd", target="tests.no_such_module")
    with pytest.raises(StageError, match=r"tests\.no_such_module has no build function"):
        ran(job(stage, run_folder))


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
