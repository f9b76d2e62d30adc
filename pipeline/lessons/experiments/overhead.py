"""Lessons on overhead: launches, an optimizer's step, and start-up."""

import time
from collections.abc import Callable
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.lessons.bench import ABSOLUTE, RELATIVE, Bench, Call, Variant, counted
from pipeline.lessons.lesson_records import Row
from pipeline.lessons.rows import Rows, kernels_in, seconds
from pipeline.records.samples import Sample
from pipeline.report import formatting

THOUSANDS = (1, 4, 16, 64, 256, 1024, 4096, 16384)  # of 1,024 fp32 numbers
KERNELS = 20  # in one call
EAGER, GRAPH = "one by one", "CUDA graph"


def run_launches(bench: Bench) -> list[Row]:
    """Launch twenty kernels that add one to a tensor, one by one or replayed as a graph."""
    variants: list[Variant] = []
    for thousands in THOUSANDS if bench.on_gpu else THOUSANDS[:-1]:
        x = bench.random(1024 * thousands)
        variants.append((row_of_launches(EAGER, thousands), partial(one_by_one, x)))
        if bench.on_gpu:
            variants.append((row_of_launches(GRAPH, thousands), as_graph(x)))
    if not bench.on_gpu:
        variants.append((Row(GRAPH), "CUDA graphs need a GPU"))
    return bench.sampling(variants)


def row_of_launches(series: str, thousands: int) -> Row:
    """Return a size under one way of launching."""
    against = f"{EAGER}, {thousands} Ki" if series == GRAPH else ""
    return Row(f"{series}, {thousands} Ki", against, series, thousands, KERNELS, kernels=KERNELS)


def one_by_one(x: torch.Tensor) -> None:
    """Launch twenty kernels from Python, each adding 1 to `x`, of any shape, in place."""
    for _ in range(KERNELS):
        x.add_(1.0)


def as_graph(x: torch.Tensor) -> Call:
    """Record the twenty kernels of `one_by_one` in a CUDA graph; return a call that replays it on `x`, of any shape."""
    graph = torch.cuda.CUDAGraph()
    one_by_one(x)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        one_by_one(x)
    return graph.replay


def by_size(rows: Rows, series: str) -> dict[float, float]:
    """Return the seconds of one kernel by its thousands of numbers."""
    return {row.at: seconds(row).value for row in rows.measured() if row.series == series and row.at is not None}


def says_launches(rows: Rows) -> list[str]:
    """Return the least time of a small kernel, the size that hides it, and why a run's report shows a shorter one."""
    eager, graph = by_size(rows, EAGER), by_size(rows, GRAPH)
    if not eager:
        return []
    beside = f", and {formatting.seconds(min(graph.values()))} in a CUDA graph" if graph else ""
    what = "a kernel launched" if graph else "an operator called"
    least = min(eager.values())
    said = [f"However small, {what} from Python takes {formatting.seconds(least)} or more here{beside}."]
    hidden = [at for at in eager if min(time for size, time in eager.items() if size >= at) >= 2 * least]
    if hidden:
        said.append(f"Only from {min(hidden):,.0f} Ki numbers on does the work take twice as long as that.")
    if graph:  # which a CPU has none of
        said.append("A run's report shows less: the best of many bursts of a kernel that does nothing.")
    return said


GPU_TENSORS, CPU_TENSORS, NUMBERS = 512, 64, 4096
SINGLY, FOREACH, FUSED = "one at a time", "foreach", "fused"

HOW: dict[str, dict[str, Any]] = {SINGLY: {"foreach": False}, FOREACH: {"foreach": True}, FUSED: {"fused": True}}
# Tensors that a step reads and writes for each parameter, by the operators of torch/optim/adam.py (torch 2.12): decay
# 2, first average 3, second average 2 + 3, its root, its correction and ε 2 each, the update 4. A fused step reads the
# parameter, its gradient and both averages, and writes all but the gradient.
PASSES = {SINGLY: 20, FOREACH: 20, FUSED: 7}


def run_optimizers(bench: Bench) -> list[Row]:
    """Step AdamW over tensors of 4,096 numbers; each variant steps its own copies, which agree after the first step."""
    count = GPU_TENSORS if bench.on_gpu else CPU_TENSORS
    start, slopes = ([bench.random(NUMBERS) for _ in range(count)] for _ in range(2))
    steps, after = {}, {}
    for name, how in HOW.items():
        steps[name], weights = stepping(start, slopes, how)
        steps[name]()
        after[name] = [weight.clone() for weight in weights]
    for name in (FOREACH, FUSED):
        torch.testing.assert_close(after[name], after[SINGLY], rtol=RELATIVE, atol=ABSOLUTE)
    moved = {name: 4.0 * passes * NUMBERS * count for name, passes in PASSES.items()}
    rows = [
        Row(name, SINGLY if name != SINGLY else "", moved_bytes=moved[name], note=f"{count} tensors") for name in HOW
    ]
    timed = bench.sampling([(row, steps[row.name]) for row in rows])
    # A CPU's operators are no launches: what is one kernel on a GPU is a loop there.
    return [counted(row, steps[row.name], bench) for row in timed] if bench.on_gpu else timed


def stepping(start: list[Tensor], slopes: list[Tensor], how: dict[str, Any]) -> tuple[Callable[[], None], list[Tensor]]:
    """Return a call that makes one optimizer step, and the weights that it changes; `slopes` are their gradients."""
    weights = [part.clone().requires_grad_() for part in start]
    for weight, slope in zip(weights, slopes, strict=True):
        weight.grad = slope.clone()
    optimizer = torch.optim.AdamW(weights, lr=1e-4, **how)

    def step() -> None:
        with torch.inference_mode(False), torch.no_grad():
            optimizer.step()

    return step, weights


def says_optimizers(rows: Rows) -> list[str]:
    """Return the paces, the launches and the bytes of each way."""
    found = {row.name: row for row in rows.measured()}
    said = kernels_in("step", rows)
    if {FOREACH, FUSED} <= set(found):
        many, few = (formatting.size(found[name].moved_bytes) for name in (FOREACH, FUSED))
        said.append(f"foreach saves launches alone and moves {many}, as one at a time does; fused moves {few}.")
    return said


EMPTY, FILLED = "empty cache", "filled cache"
TIMES, SECONDS = 3, 5.0  # pairs, and no further one begins after `SECONDS`


def run_start_up(bench: Bench) -> list[Row]:
    """Time torch.compile and the first call of a small network, in a new cache and again in the same one."""
    from torch._inductor.utils import fresh_cache

    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, 2, 1)).to(bench.device).eval()
    image = bench.random(1, 3, 32, 32)
    started_afresh(net, image)  # what only a process's first compilation pays
    taken: dict[str, list[Sample]] = {EMPTY: [], FILLED: []}
    opened = time.perf_counter()
    while len(taken[EMPTY]) < TIMES and (not taken[EMPTY] or time.perf_counter() - opened < SECONDS):
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder, fresh_cache(dir=folder, delete=False):
            for samples in taken.values():
                began = time.perf_counter()
                started_afresh(net, image)
                samples.append(Sample(1, time.perf_counter() - began, None))
    return [Row(name, EMPTY if name == FILLED else "", samples=samples) for name, samples in taken.items()]


def started_afresh(net: nn.Module, image: Tensor) -> None:
    """Compile a network and answer for one image [1, channels, height, width], as a new process would."""
    from torch._inductor.utils import clear_caches

    torch._dynamo.reset()
    clear_caches()
    with torch.inference_mode():
        torch.compile(net)(image)
    if image.is_cuda:
        torch.cuda.synchronize(image.device)


def says_start_up(rows: Rows) -> list[str]:
    """Return the time to compile a small network with an empty and a filled cache, and what a cache doesn't save."""
    empty, filled = rows.row(EMPTY), rows.row(FILLED)
    if filled is None:
        return []
    times = [formatting.seconds(seconds(row).value) for row in (empty, filled) if row]
    return [
        f"A small network is compiled in {times[0]}, and from a filled cache in {times[-1]}." if empty else "",
        "What is left is tracing, which a cache of kernels doesn't save; a package of AOTInductor's does.",
        "Keep the folder beside the service: for another torch or another device it holds nothing.",
    ]
