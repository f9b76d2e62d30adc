"""One stage under torch.profiler: a pass of its own, never the source of the headline."""

import gzip
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd import profiler as cpu_profiler
from torch.profiler import ProfilerActivity, profile, record_function

from pipeline.compiler.batch import Batch
from pipeline.profiling.kernel_classes import classify
from pipeline.records.chrome_trace import CALL, GPU_WORK, TraceEvent, complete, length, of
from pipeline.records.diagnostics import KernelRow, Profile

Given = TypeVar("Given", bound=Batch | Tensor)  # to a stage at each call


def record(
    run: Callable[[Given], object], batches: Sequence[Given], calls: int, folder: Path, shapes: bool = False
) -> tuple[list[TraceEvent], bytes]:
    """The complete events of `calls` calls of a warm stage, and the Chrome trace that they are from.

    Args:
        run: the stage.
        batches: its inputs, of any shape, taken in turn.
        calls: how many calls the pass holds.
        folder: where the trace may lie meanwhile.
        shapes: keep the shapes of the operators' inputs as well, at the price of slower operators.
    """
    on_gpu = batches[0].is_cuda
    with torch.inference_mode(), recording(on_gpu, shapes) as session:
        for batch in islice(cycle(batches), calls):
            with record_function(CALL):
                run(batch)
        if on_gpu:
            torch.cuda.synchronize()
    folder.mkdir(parents=True, exist_ok=True)
    raw = folder / "trace.json"
    session.export_chrome_trace(str(raw))
    text = raw.read_bytes().replace(str(raw).encode(), raw.name.encode())  # a trace is handed on; where it lay is not
    raw.unlink()
    return complete(json.loads(text)["traceEvents"]), text


def recording(on_gpu: bool, shapes: bool) -> profile | cpu_profiler.profile:
    """The profiler, which records what runs within; on a CPU without `torch.profiler` around it.

    That one imports Inductor to ask whether it captures CUDA graphs: two seconds for the same events.
    """
    if not on_gpu:
        return cpu_profiler.profile(record_shapes=shapes)
    return profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=shapes)


def keep(text: bytes, folder: Path) -> None:
    """Leave the trace as trace.json.gz, which opens in Perfetto."""
    (folder / "trace.json.gz").write_bytes(gzip.compress(text, compresslevel=6, mtime=0))


def profile_of(events: list[TraceEvent], calls: int, on_gpu: bool, shown: str) -> Profile:
    """What the trace of `calls` calls says, by kernel or by operator; `shown` is the folder's path in the record."""
    rows = gpu_rows(events, calls) if on_gpu else cpu_rows(events, calls)
    work = of(events, *(GPU_WORK if on_gpu else {"cpu_op"}))
    wall = (max(event.end_us for event in work) - min(event.start_us for event in work)) / 1e6 if work else 0.0
    return Profile(
        calls=calls,
        wall_seconds_per_call=wall / calls,
        busy_share=length(work) / wall if on_gpu and wall else None,
        launches_per_call=sum(row.launches_per_call for row in rows),
        kernels=rows,
        trace=f"{shown}/trace.json.gz",
    )


def gpu_rows(events: list[TraceEvent], calls: int) -> list[KernelRow]:
    """Every kernel, copy and fill on the GPU, longest first; `events` as a Chrome trace holds them (µs)."""
    return _rows([(event.name, event.duration_us) for event in events if event.category in GPU_WORK], calls)


def cpu_rows(events: list[TraceEvent], calls: int) -> list[KernelRow]:
    """Every CPU operator by the time spent in itself, without the operators that it calls."""
    threads: dict[int | str, list[TraceEvent]] = defaultdict(list)
    for event in events:
        if event.category == "cpu_op":
            threads[event.thread].append(event)
    own = [pair for thread in threads.values() for pair in _own_times(thread)]
    return _rows(own, calls)


def _own_times(events: list[TraceEvent]) -> list[tuple[str, float]]:
    """Each operator of one thread with its duration less that of its direct children, in µs."""
    own: list[tuple[str, float]] = []
    open_operators: list[tuple[float, int]] = []  # end, index into own
    for event in sorted(events, key=lambda event: (event.start_us, -event.duration_us)):
        start, duration = event.start_us, event.duration_us
        while open_operators and open_operators[-1][0] <= start:
            open_operators.pop()
        if open_operators:
            parent = open_operators[-1][1]
            own[parent] = (own[parent][0], own[parent][1] - duration)
        open_operators.append((start + duration, len(own)))
        own.append((event.name, duration))
    return own


def _rows(timed: list[tuple[str, float]], calls: int) -> list[KernelRow]:
    seconds: dict[str, float] = defaultdict(float)
    launches: dict[str, int] = defaultdict(int)
    for name, microseconds in timed:
        seconds[name] += microseconds / 1e6
        launches[name] += 1
    rows = [KernelRow(name, classify(name), launches[name] / calls, seconds[name] / calls) for name in seconds]
    return sorted(rows, key=lambda row: -row.seconds_per_call)
