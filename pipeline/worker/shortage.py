"""What a worker says of an error: its kind, one line, and where memory ran out how much there was and would fit."""

import os
import re
from contextlib import suppress
from pathlib import Path

import torch

from pipeline.measure.memory_use import host_peak_bytes
from pipeline.records.error_line import text_of, type_of
from pipeline.records.request import Job
from pipeline.records.run_record import FailureKind
from pipeline.records.samples import MemoryShortage
from pipeline.worker.failures import failure_of

UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
ASKED_FOR = re.compile(r"(?:tried|unable) to allocate (\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB|TiB)", re.IGNORECASE)
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of a container, v2 and v1


class _Start:
    """Of this process."""

    host_bytes = 0  # resident before the net and its images


def note_start() -> None:
    """Note what the process holds before its work, which no batch makes smaller."""
    _Start.host_bytes = host_peak_bytes()


def told(error: BaseException, job: Job) -> tuple[FailureKind, str, MemoryShortage | None]:
    """Kind and one-line reason of a failure, and the memory where that had run out."""
    try:
        kind, reason = failure_of(error)
    except BaseException:  # noqa: BLE001 - a stage's own error, whose fields raise in their turn
        return "error", type_of(error), None
    if kind != "out of memory":
        return kind, reason, None
    found = shortage(text_of(error), job)
    return kind, f"{reason}; {sentence(found)}", found


def shortage(text: str, job: Job) -> MemoryShortage:
    """The memory as it is now, after an error with this text."""
    asked = ASKED_FOR.search(text)
    requested = int(float(asked[1]) * UNITS[asked[2]]) if asked and asked[2] in UNITS else None
    batch, fixed = job.data.batch_size, 0
    if job.device == "cuda":
        peak, available = _on_gpu(torch.device(job.device))
    else:
        peak, available, fixed = host_peak_bytes(), host_limit(), _Start.host_bytes
    largest = largest_batch(batch, fixed, peak + (requested or 0), available)
    return MemoryShortage(peak, requested, available, batch, largest)


def _on_gpu(device: torch.device) -> tuple[int, int | None]:
    """The allocator's peak, and what it could have in all; None where the device answers no more."""
    peak = torch.cuda.max_memory_allocated(device)
    with suppress(RuntimeError):
        free, _ = torch.cuda.mem_get_info(device)
        return peak, free + torch.cuda.memory_reserved(device)
    return peak, None


def host_limit() -> int | None:
    """The memory that this process may have: the machine's, or its container's."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for place in LIMITS:
        with suppress(OSError, ValueError):  # "max" is no number
            found.append(int(Path(place).read_text()))
    return min(found)


def largest_batch(batch: int, fixed: int, needed: int, available: int | None) -> int | None:
    """The largest batch that fits if memory goes with it: fixed + each · images ≤ available; less than the one tried.

    Args:
        batch: that did not fit.
        fixed: bytes whatever the batch.
        needed: bytes that the batch would have needed at least.
        available: bytes; None where nobody knows.
    """
    if available is None or needed <= fixed:
        return None
    return max(0, min(batch - 1, int((available - fixed) * batch / (needed - fixed))))


def sentence(found: MemoryShortage) -> str:
    """The figures in a clause."""
    of = f" of {_size(found.available_bytes)} that it could have" if found.available_bytes is not None else ""
    said = f"its peak was {_size(found.peak_bytes)}{of} at batch {found.batch_size}"
    if found.largest_batch is None:
        return said
    if found.largest_batch == 0:
        return f"{said}; by that estimate not even a batch of 1 fits"
    return f"{said}; at most batch {found.largest_batch} would fit, estimated from the peak"


def _size(count: int) -> str:
    return f"{count / 2**30:.3g} GiB"
