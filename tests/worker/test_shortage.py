"""Memory that ran out: of whatever origin it is one kind, with what was held and an estimate of what would fit."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline.devices.host import oom_kills
from pipeline.worker import failures
from pipeline.worker.failures import failure_of
from tests.worker.jobs import EAGER, job

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
    """Torch, its libraries, Triton, numpy, the system; also as the cause of another error."""
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
        (8, 0, 80 * GIB, 45 * GIB, 4),
        (8, 0, 80 * GIB, 9 * GIB, 0),
        (8, 4 * GIB, 84 * GIB, 44 * GIB, 4),
        (8, 0, 20 * GIB, 40 * GIB, 7),
        (1, 0, 20 * GIB, 10 * GIB, 0),
        (8, 0, 80 * GIB, None, None),
        (8, 80 * GIB, 80 * GIB, 45 * GIB, None),
    ],
)
def test_the_largest_batch_is_estimated_as_if_memory_went_with_it(
    batch: int, fixed: int, needed: int, available: int | None, largest: int | None
) -> None:
    """Less than what was tried, whatever the figures say; unknown where one of them is."""
    assert failures.largest_batch(batch, fixed, needed, available) == largest


def test_a_shortage_on_a_cpu_gives_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peak and limit of the process, what it held at its start, and what it had asked for."""
    monkeypatch.setattr(failures, "host_peak_bytes", lambda: GIB)
    failures.note_start()
    monkeypatch.setattr(failures, "host_peak_bytes", lambda: 5 * GIB)
    monkeypatch.setattr(failures, "host_limit", lambda: 9 * GIB)
    asked = job(EAGER, tmp_path)
    asked = replace(asked, data=replace(asked.data, batch_size=8))
    error = RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 12884901888 bytes.")
    kind, reason, found = failures.told(error, asked)
    assert kind == "out of memory"
    assert found is not None
    assert (found.peak_bytes, found.requested_bytes, found.available_bytes) == (5 * GIB, 12 * GIB, 9 * GIB)
    assert (found.batch_size, found.largest_batch) == (8, 4)  # 1 GiB and 2 GiB for each image
    assert reason.endswith(
        "its peak was 5 GiB of 9 GiB that it could have at batch 8; at most batch 4 would fit, estimated from the peak"
    )
    assert "\n" not in reason


def test_the_limit_is_the_machine_s_or_its_container_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = failures.host_limit()
    (tmp_path / "v2").write_text("max\n")
    (tmp_path / "v1").write_text("1048576\n")
    monkeypatch.setattr(failures, "LIMITS", (str(tmp_path / "v2"),))
    assert machine is not None
    assert (failures.host_limit() or 0) >= machine
    monkeypatch.setattr(failures, "LIMITS", (str(tmp_path / "v2"), str(tmp_path / "v1")))
    assert failures.host_limit() == 2**20


def test_the_kernel_s_own_kills_are_counted(tmp_path: Path) -> None:
    (tmp_path / "vmstat").write_text("pgfault 3\noom_kill 7\n")
    assert oom_kills(tmp_path / "vmstat") == 7
    (tmp_path / "vmstat").write_text("odd")
    assert oom_kills(tmp_path / "vmstat") == oom_kills(tmp_path / "none") == 0
