"""Traces made by hand, as torch's profiler writes them; times in µs."""

from dataclasses import replace
from itertools import count
from typing import Any

from pipeline.records.chrome_trace import TraceEvent, complete

PLACES = count()


def written(category: str, name: str, start: float, length: float, **arguments: Any) -> dict[str, Any]:
    thread = arguments.pop("thread", 1)
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "tid": thread, "args": arguments}


def event(category: str, name: str, start: float, length: float, **arguments: Any) -> TraceEvent:
    """One complete event, on thread 1 unless `thread` says another, at a place of its own."""
    (found,) = complete([written(category, name, start, length, **arguments)])
    return replace(found, index=next(PLACES))


def layer(name: str, start: float, length: float) -> TraceEvent:
    return event("user_annotation", f"layer:{name}", start, length)


def launched(number: int, name: str, at: float, start: float, length: float) -> list[TraceEvent]:
    return [
        event("cuda_runtime", "cudaLaunchKernel", at, 2, correlation=number),
        event("kernel", name, start, length, correlation=number, thread=7),
    ]


def copy(start: float, length: float, target: list[int], source: list[int]) -> TraceEvent:
    """A copy of an image [2, 8, 4, 4], or of a volume [2, 8, 4, 4, 4], with these strides."""
    shape = [2, 8, *[4] * (len(target) - 2)]
    return event(
        "cpu_op", "aten::copy_", start, length, **{"Input Dims": [shape] * 2, "Input Strides": [target, source]}
    )


NCHW, NHWC = [128, 16, 4, 1], [128, 1, 32, 8]
NCDHW, NDHWC = [512, 64, 16, 4, 1], [512, 1, 128, 32, 8]
