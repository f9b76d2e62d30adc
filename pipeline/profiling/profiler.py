"""One stage under torch.profiler, in a pass of its own: its kernels by class, and where the time goes."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import TypeVar

import torch
import yaml
from torch import Tensor
from torch.autograd import profiler as cpu_profiler
from torch.profiler import ProfilerActivity, profile, record_function

from pipeline.compiler.batch import Batch
from pipeline.records.chrome_trace import CALL, DRIVER, GPU_WORK, TraceEvent, complete, length, nested, of
from pipeline.records.diagnostics import KernelClass, KernelRow, Profile, TimeSplit

Given = TypeVar("Given", bound=Batch | Tensor)  # to a stage at each call
Key = TypeVar("Key")


def record(
    run: Callable[[Given], object], batches: Sequence[Given], calls: int, folder: Path, shapes: bool = False
) -> tuple[list[TraceEvent], bytes]:
    """Record `calls` calls of a warm stage: their complete events, and the Chrome trace that holds them."""
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
    """Return the profiler that records what runs within; on a CPU without `torch.profiler` around it."""
    # That one imports Inductor to ask whether it captures CUDA graphs: two seconds for the same events.
    if not on_gpu:
        return cpu_profiler.profile(record_shapes=shapes)
    return profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=shapes)


def profile_of(events: list[TraceEvent], calls: int, on_gpu: bool, shown: str) -> Profile:
    """Return what the trace of `calls` calls says, by kernel or operator; `shown` is the folder in the record."""
    work = of(events, *(GPU_WORK if on_gpu else {"cpu_op"}))
    timed = [(event.name, event.duration_us) for event in work]
    rows = _rows(timed if on_gpu else [(each.event.name, each.own_us) for each in nested(work)], calls)
    wall = (max(event.end_us for event in work) - min(event.start_us for event in work)) / 1e6 if work else 0.0
    return Profile(
        calls=calls,
        wall_seconds_per_call=wall / calls,
        busy_share=length(work) / wall if on_gpu and wall else None,
        launches_per_call=sum(row.launches_per_call for row in rows),
        kernels=rows,
        trace=f"{shown}/trace.json.gz",
    )


def _rows(timed: list[tuple[str, float]], calls: int) -> list[KernelRow]:
    """Return kernels or operators by name, longest first, of their times in `calls` calls (µs)."""
    times = grouped(timed).items()
    rows = [KernelRow(name, classify(name), len(each) / calls, sum(each) / 1e6 / calls) for name, each in times]
    return sorted(rows, key=lambda row: -row.seconds_per_call)


def grouped(timed: Iterable[tuple[Key, float]]) -> dict[Key, list[float]]:
    """Return the times of each key, such as a kernel's name, in the order of the first ones."""
    times: dict[Key, list[float]] = defaultdict(list)
    for key, time in timed:
        times[key].append(time)
    return times


CLASSES = yaml.safe_load(Path(__file__).with_name("kernel_classes.yaml").read_text("utf-8"))
JOINS = re.compile(r"^(?!triton_|cpp_).*(cat_?array|concat|aten::cat$)", re.IGNORECASE)
COMPILED: list[tuple[KernelClass, re.Pattern[str]]] = [
    (each["class"], re.compile("|".join(each["patterns"]), re.IGNORECASE)) for each in CLASSES
]


def classify(name: str) -> KernelClass:
    """Return the class of the kernel or operator called `name`."""
    return next((kind for kind, pattern in COMPILED if pattern.search(name)), "other")


def joins(name: str) -> bool:
    """Return whether a kernel, or a CPU operator, does a concatenation and nothing else."""
    return bool(JOINS.search(name))


STARTS_WORK = ("Launch", "Memcpy", "Memset")  # in the names of the driver's calls
WAITS = "Synchronize"


def split(events: list[TraceEvent], calls: int) -> TimeSplit | None:
    """Return the split of one call, the mean of `calls`; None without annotations of the calls."""
    # The host is in a call of the driver that starts work, in another operator of the framework, or in neither, which
    # is the interpreter with the caller's own code.
    whole = [event for event in of(events, "user_annotation") if event.name == CALL]
    if not whole:
        return None
    gpu = of(events, *GPU_WORK)
    threads = {event.thread for event in whole}
    driver = [event for event in of(events, *DRIVER) if event.thread in threads]
    starts = [event for event in driver if any(word in event.name for word in STARTS_WORK)]
    waits = [event for event in driver if WAITS in event.name]
    operators = [event for event in of(events, "cpu_op") if event.thread in threads]
    begin, stop = min(event.start_us for event in whole), max(event.end_us for event in whole)
    inside = [event for event in operators + driver if begin <= event.start_us < stop]
    host, launch = length(whole), length(starts)
    wall = (max(event.end_us for event in whole + gpu) - begin) / 1e6
    return TimeSplit(
        wall_seconds=wall / calls,
        device_seconds=length(gpu) / calls if gpu else None,
        launch_seconds=launch / calls,
        framework_seconds=max(0.0, length(inside) - launch) / calls,
        interpreter_seconds=max(0.0, host - length(inside)) / calls,
        waiting_seconds=length(waits) / calls,
    )


LEAST_BUSY_SHARE = 0.02  # of a call; a network of tiny layers that waits for Python keeps a GPU busy for a tenth


def idle_reason(events: list[TraceEvent], calls: int, seconds_per_call: float, layers: int) -> str:
    """Return why a stage did no work on the GPU; empty if it did, or if no profiler saw the driver.

    Copies and a few fills and casts don't count, as a stage that computes on the CPU makes them, too. A kernel for each
    of the network's `layers` does: where the CPU is busy with other processes, tiny layers wait for it.
    """
    if not of(events, *DRIVER):
        return ""
    kernels = of(events, "kernel")
    busy = length(kernels) / calls
    if busy > 0 and (busy >= LEAST_BUSY_SHARE * seconds_per_call or len(kernels) >= calls * layers > 0):
        return ""
    seen = f"its kernels ran for {busy * 1e6:.3g} µs of the {seconds_per_call * 1e6:.3g} µs that a call takes"
    return f"did no work on the GPU: {seen}"
