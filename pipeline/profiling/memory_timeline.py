"""The allocator's statistics through one call: the peak, what is alive there, and the workspace of libraries."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.compiler.batch import Batch
from pipeline.profiling.layers import hooked, layers_of
from pipeline.profiling.operators import size
from pipeline.records.diagnostics import MemoryHolder, MemoryTimeline, Watched
from pipeline.stages.api import Runner

MOST_ENTRIES = 10_000  # of the allocator's history: a call of a large compiled network has a few thousand
SIGNS = {"alloc": 1, "free_requested": -1}  # of the entries that change the allocated bytes

Change = tuple[float, int]  # seconds since the first change, and bytes: negative where they were given back
History = Callable[[Callable[[], object]], list[Change] | None]  # makes the call, and says what it changed, if it can


class HistoryError(Exception):
    """The allocator's history doesn't hold the whole call; the text is one line."""


class AllocatorStatistics:
    """The counters of torch's CUDA allocator in bytes, read on the host without a synchronisation."""

    allocated = staticmethod(torch.cuda.memory_allocated)
    peak = staticmethod(torch.cuda.max_memory_allocated)
    reset = staticmethod(torch.cuda.reset_peak_memory_stats)


@dataclass
class Watch:
    """The readings of the statistics before and after each layer."""

    statistics: AllocatorStatistics
    started: float = field(default_factory=time.perf_counter)
    seconds: list[float] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)
    outputs: list[tuple[str, int, weakref.ref[Tensor]]] = field(default_factory=list)
    highest: int = -1
    workspace: int = 0
    holders: list[MemoryHolder] = field(default_factory=list)
    peak_layer: str | None = None

    def note(self, amount: int) -> None:
        """Add one point to the timeline."""
        self.seconds.append(time.perf_counter() - self.started)
        self.allocated.append(amount)

    def read(self, name: str = "", output: Tensor | None = None) -> None:
        """Note the peak since the last reading and what stands now."""
        peak, now = self.statistics.peak(), self.statistics.allocated()
        if output is not None:
            self.outputs.append((name, size(output), weakref.ref(output)))
        if peak > self.highest:
            self.highest, self.workspace = peak, peak - now if output is not None else 0
            self.holders = self.alive()
            self.peak_layer = name if output is not None else None
        self.note(peak)
        self.note(now)
        self.statistics.reset()

    def alive(self) -> list[MemoryHolder]:
        """Return the outputs that are still held, the largest first; each block once, with all layers that wrote it."""
        blocks: dict[int, MemoryHolder] = {}
        for name, amount, held in self.outputs:
            if (part := held()) is not None:
                place = part.untyped_storage().data_ptr()
                before = blocks[place].layers if place in blocks else []
                blocks[place] = MemoryHolder([*before, name], amount)
        return sorted(blocks.values(), key=lambda block: -block.size_bytes)


def unrecorded(call: Callable[[], object]) -> None:
    """Make the call without a history."""
    call()


def memory_timeline(
    runner: Runner, batch: Batch | Tensor, statistics: AllocatorStatistics, context_bytes: int | None,
    history: History = unrecorded,
) -> MemoryTimeline:  # fmt: skip
    """Return the timeline of one call of a warm stage, uncaptured if the stage replays a graph."""
    # Activations of an uncaptured call lie in the pool of the stage's graph as well: no memory beyond the reserve.
    watch, changes = watched_call(runner, batch, statistics, history)
    held, layered = watch.allocated[0], runner.module
    seconds, amounts = outline(changes, held) if changes else (watch.seconds, watch.allocated)
    weights = [] if layered is None else [*layered.parameters(), *layered.buffers()]
    by: Watched = "layers" if layered is not None else "ends"
    if layered is None and changes is not None:
        by = "allocations" if changes else "nothing allocated"
    return MemoryTimeline(
        seconds=seconds,
        allocated_bytes=amounts,
        weights_bytes=sum(map(size, weights)) if weights else None,
        activations_bytes=watch.highest - held - watch.workspace,
        workspace_bytes=watch.workspace if layered is not None else None,
        held_bytes=held,
        context_bytes=context_bytes,
        peak_layer=watch.peak_layer,
        holders=watch.holders,
        call="own" if runner.uncaptured is None else "uncaptured",
        watched=by,
    )


def watched_call(
    runner: Runner, batch: Batch | Tensor, statistics: AllocatorStatistics, history: History
) -> tuple[Watch, list[Change] | None]:
    """Return the readings of a call, and its changes if no layer can be watched."""
    call, layered = runner.one_by_one, runner.module

    def after(name: str, _: nn.Module, __: tuple[object, ...], output: object) -> None:
        watch.read(name, output if isinstance(output, Tensor) else None)

    with torch.inference_mode():
        if runner.uncaptured is not None:
            call(batch)  # what a library asks for at its first call, and keeps, is not this call's
        statistics.reset()
        watch = Watch(statistics)
        watch.note(held := statistics.allocated())
        with hooked(layers_of(layered), lambda *_: watch.read(), after):
            changes = (history if layered is None else unrecorded)(lambda: call(batch))
        watch.read()
    if changes == [] and watch.highest > held:
        raise HistoryError(f"torch's history is empty, though the call allocates {watch.highest - held} bytes")
    return watch, changes


def cuda_history(call: Callable[[], object]) -> list[Change]:
    """Return what the call changes in the allocated bytes of the GPU, by torch's history, no public part of it."""
    memory = torch.cuda.memory
    memory._record_memory_history(enabled="all", context=None, max_entries=MOST_ENTRIES)
    try:
        call()
        entries = memory._snapshot()["device_traces"][torch.cuda.current_device()]
    finally:
        memory._record_memory_history(enabled=None)  # which drops what was kept, too
    if len(entries) >= MOST_ENTRIES:
        raise HistoryError(f"the call fills torch's history of {MOST_ENTRIES} entries, so that its beginning is lost")
    return changes_in(entries)


def changes_in(entries: list[dict[str, Any]]) -> list[Change]:
    """Return the changes of the allocated bytes among a history's entries: freed counts once that is asked for."""
    kept = [entry for entry in entries if entry["action"] in SIGNS]
    return [((entry["time_us"] - kept[0]["time_us"]) / 1e6, SIGNS[entry["action"]] * entry["size"]) for entry in kept]


def outline(changes: list[Change], held: int) -> tuple[list[float], list[int]]:
    """Return moments and amounts before and after every change, which draw its steps."""
    seconds, amounts = [0.0], [held]
    for moment, change in changes:
        seconds += [moment, moment]
        amounts += [amounts[-1], amounts[-1] + change]
    return seconds, amounts
