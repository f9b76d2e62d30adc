"""Any error as the kind of failure that it is and one line: where its type is known, and nowhere else."""

import errno
import os
from collections.abc import Iterator
from typing import get_args

import torch

from pipeline.records.error_line import MOST_CHARACTERS, first_line, shortened, text_of, typed_line
from pipeline.records.run_record import FailureKind
from pipeline.stages.api import Skip, StageError
from pipeline.worker.where_raised import place_of

# How torch, cuDNN and cuBLAS say in a plain RuntimeError that an allocation failed: they have no type for it (torch
# 2.12). A stage raises the errors of its own runtime as torch's.
ALLOCATION_FAILED = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "cudaErrorMemoryAllocation",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED",
    "HIP out of memory",
    "std::bad_alloc",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Cannot allocate memory",  # errno ENOMEM, as the system words it
)

WARNINGS = "PYTHONWARNINGS"  # which makes errors of warnings

# What ends a process at once: its exit code, or its signal, then says more than a line could.
ENDINGS = (SystemExit, KeyboardInterrupt)
KINDS = get_args(FailureKind)
UNKNOWN: FailureKind = "error"
TELLING: tuple[FailureKind, ...] = ("out of memory", "missing library")  # as the cause of an error without a kind


def failure_of(error: BaseException) -> tuple[FailureKind, str]:
    """What kind of failure an error is, and its reason in one line, with the line of the net's code that it passed."""
    if isinstance(error, StageError | Skip):
        own = error.kind if error.kind in KINDS else UNKNOWN
        telling = TELLING if own == UNKNOWN else TELLING[:1]
        kind = next((found for part in _causes(error) if (found := _kind(part)) in telling), own)
        return kind, _placed(f"{_made_an_error(error)}{first_line(error)}", error)
    kind = next((found for part in _causes(error) if (found := _kind(part))), "error")
    if kind == "out of memory":
        return kind, f"out of memory: {first_line(error)}"
    return kind, _placed(f"{_made_an_error(error)}{typed_line(error)}", error)


def _made_an_error(error: BaseException) -> str:
    """The variable by which a warning is an error, as the head of a reason; empty for what isn't of a warning."""
    asked, warned = os.environ.get(WARNINGS), any(isinstance(part, Warning) for part in _causes(error))
    return f"{WARNINGS}={asked} makes errors of warnings: " if asked and warned else ""


def _placed(reason: str, error: BaseException) -> str:
    """The reason, and where in the net's code the error arose, in one line."""
    causes = list(_causes(error))
    place = place_of(causes, map(text_of, causes))
    return f"{shortened(reason, MOST_CHARACTERS - len(place))}{place}"


def _kind(error: BaseException) -> FailureKind | None:
    """The kind of one error, without its causes; None for one of no special kind."""
    if isinstance(error, StageError | Skip):
        return error.kind if error.kind in KINDS else UNKNOWN
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "out of memory"
    if isinstance(error, ImportError):
        return "missing library"
    if isinstance(error, NotImplementedError):
        return "unsupported"
    if isinstance(error, OSError):
        return "out of memory" if error.errno == errno.ENOMEM else None
    return (
        "out of memory"
        if isinstance(error, RuntimeError) and any(part in text_of(error) for part in ALLOCATION_FAILED)
        else None
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from; Inductor keeps the cause of a failed compilation as `inner_exception`."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        inner = vars(following).get("inner_exception")
        following = inner if isinstance(inner, BaseException) else following.__cause__
