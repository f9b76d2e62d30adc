"""One stage under torch.profiler: a pass of its own, never the source of the headline."""

import gzip
import json
from collections import defaultdict
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from pipeline.explain.kernels import classify
from pipeline.records import KernelRow, Profile

GPU_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset"}


def profile_stage(
    run: Callable[[Tensor], Tensor], batches: list[Tensor], calls: int, folder: Path, shown: str
) -> Profile:
    """Profile `calls` calls of a warm stage and leave a Chrome trace, gzipped, that opens in Perfetto.

    Args:
        run: the stage.
        batches: its inputs, taken in turn.
        calls: how many calls the pass holds.
        folder: where trace.json.gz goes.
        shown: the folder's path as the record is to name it.
    """
    on_gpu = batches[0].is_cuda
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    with torch.inference_mode(), profile(activities=activities) as session:
        for batch in islice(cycle(batches), calls):
            run(batch)
        if on_gpu:
            torch.cuda.synchronize()
    folder.mkdir(parents=True, exist_ok=True)
    raw = folder / "trace.json"
    session.export_chrome_trace(str(raw))
    text = raw.read_bytes()
    raw.unlink()
    (folder / "trace.json.gz").write_bytes(gzip.compress(text, compresslevel=6, mtime=0))
    events = [event for event in json.loads(text)["traceEvents"] if event.get("ph") == "X"]
    rows = gpu_rows(events, calls) if on_gpu else cpu_rows(events, calls)
    work = [event for event in events if event.get("cat") in (GPU_CATEGORIES if on_gpu else {"cpu_op"})]
    wall = _span_seconds(work)
    return Profile(
        calls=calls,
        wall_seconds_per_call=wall / calls,
        busy_share=busy_seconds(work) / wall if on_gpu and wall else None,
        launches_per_call=sum(row.launches_per_call for row in rows),
        kernels=rows,
        trace=f"{shown}/trace.json.gz",
    )


def gpu_rows(events: list[dict[str, Any]], calls: int) -> list[KernelRow]:
    """Every kernel, copy and fill on the GPU, longest first; `events` as a Chrome trace holds them (µs)."""
    return _rows([(event["name"], event["dur"]) for event in events if event.get("cat") in GPU_CATEGORIES], calls)


def cpu_rows(events: list[dict[str, Any]], calls: int) -> list[KernelRow]:
    """Every CPU operator by the time spent in itself, without the operators that it calls."""
    threads: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op":
            threads[event["tid"]].append(event)
    own = [pair for thread in threads.values() for pair in _own_times(thread)]
    return _rows(own, calls)


def _own_times(events: list[dict[str, Any]]) -> list[tuple[str, float]]:
    """Each operator of one thread with its duration less that of its direct children, in µs."""
    own: list[tuple[str, float]] = []
    open_operators: list[tuple[float, int]] = []  # end, index into own
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        start, duration = event["ts"], event["dur"]
        while open_operators and open_operators[-1][0] <= start:
            open_operators.pop()
        if open_operators:
            parent = open_operators[-1][1]
            own[parent] = (own[parent][0], own[parent][1] - duration)
        open_operators.append((start + duration, len(own)))
        own.append((event["name"], duration))
    return own


def _rows(timed: list[tuple[str, float]], calls: int) -> list[KernelRow]:
    seconds: dict[str, float] = defaultdict(float)
    launches: dict[str, int] = defaultdict(int)
    for name, microseconds in timed:
        seconds[name] += microseconds / 1e6
        launches[name] += 1
    rows = [KernelRow(name, classify(name), launches[name] / calls, seconds[name] / calls) for name in seconds]
    return sorted(rows, key=lambda row: -row.seconds_per_call)


def busy_seconds(events: list[dict[str, Any]]) -> float:
    """The length of the union of the events' intervals: overlapping streams count once."""
    total = reach = 0.0
    for event in sorted(events, key=lambda event: float(event["ts"])):
        start, end = event["ts"], event["ts"] + event["dur"]
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total / 1e6


def _span_seconds(events: list[dict[str, Any]]) -> float:
    if not events:
        return 0.0
    end = max(float(event["ts"]) + float(event["dur"]) for event in events)
    return (end - min(float(event["ts"]) for event in events)) / 1e6
