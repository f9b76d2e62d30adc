"""Traces made by hand, as torch's profiler writes them; times in µs."""

from typing import Any

Event = dict[str, Any]


def event(category: str, name: str, start: float, length: float, **arguments: Any) -> Event:
    """One complete event on thread 1."""
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length, "tid": 1, "args": arguments}


def layer(name: str, start: float, length: float) -> Event:
    """The annotation of a layer."""
    return event("user_annotation", f"layer:{name}", start, length)


def launched(number: int, name: str, at: float, start: float, length: float) -> list[Event]:
    """A launch at `at` that takes 2 µs, and its kernel."""
    return [
        event("cuda_runtime", "cudaLaunchKernel", at, 2, correlation=number),
        event("kernel", name, start, length, correlation=number) | {"tid": 7},
    ]


def copy(start: float, length: float, target: list[int], source: list[int]) -> Event:
    """A copy of an image [2, 8, 4, 4] with these strides."""
    return event(
        "cpu_op", "aten::copy_", start, length, **{"Input Dims": [[2, 8, 4, 4]] * 2, "Input Strides": [target, source]}
    )


NCHW, NHWC = [128, 16, 4, 1], [128, 1, 32, 8]
