"""What a failure is told as: its kind, the line of the network's code, memory that ran out, and the process's end."""

import errno
import io
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.devices.host import oom_kills
from pipeline.errors import MOST_CHARACTERS, first_line
from pipeline.records.plan import Phase
from pipeline.stages.api import Skip, StageError
from pipeline.worker import __main__ as worker
from pipeline.worker import failures
from pipeline.worker.failures import failure_of
from tests.compiler.nets_that_passes_leave import Made
from tests.worker.jobs import EAGER, Recorder, job


class Inner(nn.Module):
    def forward(self, image: Tensor) -> Tensor:
        return torch.cat([image, image[:, :, :-1]], 1)


class Terse(nn.Module):
    def forward(s, image: Tensor) -> Tensor:  # noqa: N805 - as some write it
        assert image.dim() == 3
        return image


OUTER = Made(lambda image, blocks: blocks(image), nn.Sequential(Inner()))


class OfTorch(nn.Conv2d):
    def forward(self, image: Tensor) -> Tensor:
        return super().forward(image)


class ByItsData(nn.Module):
    def forward(self, image: Tensor) -> Tensor:
        while image.mean() > 1:
            image = image / 2
        return image


def raised(work: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever torch raises
        work()
    return caught.value


@pytest.mark.parametrize(
    ("net", "place"),
    [
        (OUTER, "Inner.forward"),
        (OfTorch(7, 1, 1), "OfTorch.forward"),
        (Terse(), "Terse.forward"),
        (nn.Conv2d(7, 1, 1), None),
    ],
)
def test_the_innermost_line_of_the_nets_own_code_is_named(net: nn.Module, place: str | None) -> None:
    kind, reason = failure_of(raised(lambda: net(torch.zeros(1, 3, 4, 4))))
    assert kind == "error"
    assert reason.startswith("AssertionError" if place == "Terse.forward" else "RuntimeError: ")
    assert len(reason) <= MOST_CHARACTERS
    found = re.search(r"\(in (.+), test_failures\.py:\d+\)$", reason)
    assert (found and found[1]) == place
    assert (".py:" in reason) == (place is not None)


def test_the_place_is_told_of_a_stages_own_error_too() -> None:
    error = StageError("torch.export can't take the network")
    error.__cause__ = raised(lambda: OUTER(torch.zeros(1, 3, 4, 4)))
    assert "in Inner.forward" in failure_of(error)[1]


def test_what_torch_compile_explains_is_in_the_line() -> None:
    """Its first line is the same for any operator that fails; the lines of the net it quotes in its text alone."""
    compiled = torch.compile(OUTER, backend="eager")
    reason = failure_of(raised(lambda: compiled(torch.zeros(1, 3, 4, 4))))[1]
    assert "cat" in reason
    assert "in forward, test_failures.py" in reason


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_code_that_torchscript_writes_is_no_place_in_the_net() -> None:
    content = io.BytesIO()
    torch.jit.save(torch.jit.trace(nn.Conv2d(3, 1, 1), torch.zeros(1, 3, 4, 4)), content)
    content.seek(0)
    kind, reason = failure_of(raised(lambda: torch.jit.load(content)(torch.zeros(1, 7, 4, 4))))
    assert kind == "error"
    assert reason.startswith("RuntimeError: Given groups=1, weight of size [1, 3, 1, 1]")
    assert ".py" not in reason


def test_a_heading_gives_way_to_the_cause() -> None:
    program = torch.export.export
    error = RuntimeError("Failed to export. \x1b[96mThis is step 1/3\x1b[0m of exporting. Next steps:\n- Modify it")
    error.__cause__ = raised(lambda: program(ByItsData(), (torch.ones(1, 3, 4, 4),)))
    kind, reason = failure_of(error)
    assert kind == "unsupported"
    assert "the network decides by values that it computes" in reason
    assert "in forward, test_failures.py" in reason
    assert "step 1/3" not in reason


def test_colours_of_a_terminal_are_no_part_of_an_error() -> None:
    assert first_line(ValueError("\x1b[96mno\x1b[0m such layer")) == "no such layer"


GIB = 2**30


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported at some other call"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("Triton Error [CUDA]: CUDA_ERROR_OUT_OF_MEMORY"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
    ids=lambda error: str(error)[:40],
)
def test_out_of_memory_is_one_kind_whoever_says_so(error: Exception) -> None:
    outer = RuntimeError("the backend failed")
    outer.__cause__ = error
    assert failure_of(error)[0] == "out of memory"
    assert failure_of(outer)[0] == "out of memory"
    assert "the backend failed" in failure_of(outer)[1]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("a size mismatch")])
def test_another_error_is_none_of_it(error: Exception, tmp_path: Path) -> None:
    kind, reason, found = failures.told(error, job(EAGER, tmp_path))
    assert (kind, found) == ("error", None)
    assert str(error).rpartition("] ")[2] in reason


@pytest.mark.parametrize(
    ("batch", "fixed", "needed", "available", "largest"),
    [
        (8, 0, 80 * GIB, 45 * GIB, 4), (8, 0, 80 * GIB, 9 * GIB, 0), (8, 4 * GIB, 84 * GIB, 44 * GIB, 4),
        (8, 0, 20 * GIB, 40 * GIB, 7), (1, 0, 20 * GIB, 10 * GIB, 0), (8, 0, 80 * GIB, None, None),
        (8, 80 * GIB, 80 * GIB, 45 * GIB, None),
    ],
)  # fmt: skip
def test_the_largest_batch_is_estimated_as_if_memory_went_with_it(
    batch: int, fixed: int, needed: int, available: int | None, largest: int | None
) -> None:
    assert failures.largest_batch(batch, fixed, needed, available) == largest


def test_a_shortage_on_a_cpu_gives_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(failures.STARTED, "host_bytes", GIB)
    monkeypatch.setattr(failures, "host_peak_bytes", lambda: 5 * GIB)
    monkeypatch.setattr(failures, "memory_bytes", lambda: 9 * GIB)
    asked = job(EAGER, tmp_path)
    asked = replace(asked, data=replace(asked.data, batch_size=8))
    error = RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 12884901888 bytes.")
    kind, reason, found = failures.told(error, asked)
    assert kind == "out of memory"
    assert (found.peak_bytes, found.requested_bytes, found.available_bytes) == (5 * GIB, 12 * GIB, 9 * GIB)
    assert (found.batch_size, found.largest_batch) == (8, 4)  # 1 GiB and 2 GiB for each image
    assert reason.endswith(
        "its peak was 5 GiB of 9 GiB that it could have at batch 8; at most batch 4 would fit, estimated from the peak"
    )
    assert "\n" not in reason


def test_the_kernel_s_own_kills_are_counted(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("pgfault 3\noom_kill 7\n")
    assert oom_kills(tmp_path / "vmstat") == 7
    (tmp_path / "vmstat").write_text("odd")
    assert oom_kills(tmp_path / "vmstat") == oom_kills(tmp_path / "none") == 0


class SecretiveError(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return KeyboardInterrupt

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise RuntimeError("no fields")


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Phase, BaseException], dict[str, Any]]:
    def end(phase: Phase, error: BaseException) -> dict[str, Any]:
        line = Recorder()

        class Line:
            def __init__(self, _: int) -> None:
                self.phase, self.report, self.done = phase, line.report, lambda: None

            def job(self) -> object:
                return asdict(job(EAGER, tmp_path))

        def fails(*_: object) -> None:
            raise error

        monkeypatch.setattr(worker, "PipeReporter", Line)
        monkeypatch.setattr(worker, "die_with_the_parent", lambda: None)
        monkeypatch.setattr(worker, "import_module", fails if phase == Phase.START else lambda _: None)
        monkeypatch.setattr(worker, "run_stage", fails)
        worker.main(0)
        return line.fields

    return end


Ended = Callable[[Phase, BaseException], dict[str, Any]]


@pytest.mark.parametrize(
    ("phase", "error", "reason"),
    [
        (Phase.SAMPLING, GeneratorExit(), "GeneratorExit"),
        (Phase.SAMPLING, KeyboardInterrupt(), "KeyboardInterrupt"),
        (Phase.SAMPLING, SecretiveError("hidden"), "SecretiveError"),
        (Phase.SAMPLING, StageError("it can't", "no such kind"), "it can't"),  # type: ignore[arg-type]
        (Phase.SAMPLING, StageError("it can't", ["a"]), "it can't"),  # type: ignore[arg-type]
        (Phase.START, OSError(2, "None there", "/a"), "FileNotFoundError: [Errno 2] None there: '/a'"),  # no cache
    ],
)
def test_whatever_is_raised_is_told(phase: Phase, error: BaseException, reason: str, ended: Ended) -> None:
    fields = ended(phase, error)
    assert (fields["status"], fields["failure"], fields["reason"]) == ("failed", "error", reason)


def test_who_ends_the_process_ends_it(ended: Ended) -> None:
    with pytest.raises(SystemExit):
        ended(Phase.BUILD, SystemExit(0))


INNER = {
    "GuardOnDataDependentSymNode: Could not guard on data-dependent expression Eq(u0, 1)": "decides by values that it",
    "unordered_map::at": "TorchScript holds no Python function, such as",
    "Could not export Python function call 'Swish'. Remove calls": "no Python function Swish, such as",
    "\"avg_pool3d_out_frame\" not implemented for 'BFloat16'": "no kernel avg_pool3d_out_frame for BFloat16 on this",
    "quantile() input tensor must be either float or double dtype": "torch has quantile in fp32 and fp64 alone",
    "value cannot be converted to type c10::Half without overflow": "beyond the range of Half",
    "Error when translating node %zeros_like : [num_users=1]": "ONNX has no form of zeros_like",
    "x INTERNAL ASSERT FAILED at a.cpp:3, please report a bug to PyTorch": "an assertion of its own",
    ".numpy() is not supported for tensor subclasses.": "computes with numpy",
}


@pytest.mark.parametrize("text", INNER)
def test_torchs_inner_words_are_said_plainly_and_are_no_form_of_a_stage(text: str, ended: Ended) -> None:
    assert INNER[text] in failure_of(RuntimeError(text))[1]
    fields = ended(Phase.BUILD, RuntimeError(text))
    assert (fields["status"], fields["failure"]) == ("skipped", "unsupported")
    assert ended(Phase.SAMPLING, RuntimeError(text))["status"] == "failed"


def test_only_a_build_says_that_it_has_no_form_here(ended: Ended) -> None:
    assert ended(Phase.BUILD, Skip("needs a GPU"))["status"] == "skipped"
    assert ended(Phase.BUILD, StageError("no layer of it", "unsupported"))["status"] == "skipped"
    assert ended(Phase.BUILD, StageError("stage.dtype=fp8: no such form", "unsupported"))["status"] == "failed"
    late = ended(Phase.SAMPLING, Skip("not today"))
    assert (late["status"], late["failure"], late["reason"]) == ("failed", "unsupported", "not today")
