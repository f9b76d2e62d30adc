"""The diagnostics of one stage, each part on its own: one that fails is noted and costs no other."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch
from torch import Tensor, nn

from pipeline.compiler.batch import Batch, batched
from pipeline.errors import typed_line
from pipeline.measure.clock import Clock
from pipeline.profiling import fusion, layers, layout_changes, memory_timeline, observed_execution, profiler
from pipeline.profiling.layers import announced
from pipeline.records import diagnostics
from pipeline.records.chrome_trace import TraceEvent
from pipeline.records.diagnostics import BatchGrowth, Diagnostics, ImageGrowth, LayerTime, LayoutChange, Note, Topic
from pipeline.stages.api import IMAGE_RANK, Runner, Workload

Part = TypeVar("Part")


class Explained:
    """A stage on its way to a `Diagnostics`; its functions take a Batch, or tensors [batch, ...]."""

    def __init__(self, runner: Runner, net: nn.Module, batches: Sequence[Batch | Tensor], folder: Path) -> None:
        self.runner = runner
        self.net = net
        self.batches = batches
        self.folder = folder
        self.notes: list[Note] = []
        self.order: list[layers.ComputeLayer] = []  # empty until it is needed

    def note(self, topic: Topic, code: diagnostics.NoteCode, text: str) -> None:
        """Note what could not be found out, and why."""
        self.notes.append(Note(topic, code, text))

    def tried(self, topic: Topic, part: Callable[[], Part], instead: Part) -> Part:
        """Return the part, or `instead` with a note if finding it out fails."""
        try:
            return part()
        except Exception as error:  # noqa: BLE001 - an explanation is not worth a measured stage
            traceback.print_exc()
            self.note(topic, "failed", typed_line(error))
            return instead

    def layers(self, events: list[TraceEvent], calls: int) -> tuple[list[LayerTime], diagnostics.LayersSource | None]:
        """Return the time of each layer and its source; nothing, with a note, if the stage hides its layers."""
        if self.runner.module is not None and self.runner.uncaptured is None:
            with announced(self.runner.module):
                own, _ = profiler.record(self.runner.run, self.batches, calls, self.folder)
            return layers.own_times(own, calls), "profile"
        if self.runner.uncaptured is None and not self.batches[0].is_cuda:
            self.note("layers", "hidden layers", "on a CPU this runtime doesn't say which layer an operator is for")
            return [], None
        if self.runner.uncaptured is None:  # the runtime names no layers, but their order tells them
            self.order = layers.compute_layers(self.net, *batched(self.batches[0]))
            by_order = layers.times(layers.placed(events, calls, self.order), calls)
            if loose := sum(not layer.certain for layer in self.order):
                text = f"{loose} of {len(self.order)} layers with matrix work could run in another order; "
                self.note("layers", "ambiguous order", f"{text}their time counts as between layers")
            return by_order, "layer order"
        found = layers.replayed_times(events, self.one_by_one(shapes=False), calls)
        if found is None:
            text = "the replayed kernels aren't those that the same network launches one by one"
            self.note("layers", "kernels differ", text)
        return found or [], "uncaptured" if found else None

    def spots(self, events: list[TraceEvent], calls: int) -> dict[int, str]:
        """Return the place in the call of each kernel of a trace, by its id; nothing if it is unknown."""
        try:
            found = layers.placed(events, calls, self.order) if self.order else []
        except layers.OrderError:
            return {}
        return {part.event.index: part.spot for part in found if part.spot}

    def one_by_one(self, shapes: bool) -> list[TraceEvent]:
        """Record one call, uncaptured if the stage replays a graph, with its layers announced if they are known."""
        with announced(self.runner.module):
            events, _ = profiler.record(self.runner.one_by_one, self.batches, 1, self.folder, shapes)
        return events

    def layout(self, compiled: diagnostics.Fusion | None, events: list[TraceEvent], calls: int) -> list[LayoutChange]:
        """Return the changes of layout by the trace, by what a compiler wrote, and by the exported graph."""
        written = fusion.compiled_layout_changes(compiled, events, calls, self.spots(events, calls)) if compiled else []
        names, call = {change.name for change in written}, self.one_by_one(shapes=True)
        traced = [
            change for change in layout_changes.trace_changes(call, 1, self.spots(call, 1)) if change.name not in names
        ]
        graph = self.runner.onnx_model
        return [*traced, *written, *(layout_changes.onnx_changes(graph) if graph else [])]

    def memory(self, context_bytes: int | None) -> diagnostics.MemoryTimeline | None:
        """Return the allocator's timeline; None on a CPU. A way that fails leaves a note, and the next is tried."""
        if not self.batches[0].is_cuda:
            text = "torch keeps no statistics of what it allocates on a CPU"
            self.note("memory timeline", "no allocator statistics", text)
            return None
        batch, statistics = self.batches[0], memory_timeline.AllocatorStatistics()
        found: diagnostics.MemoryTimeline | None = None
        hidden = replace(self.runner, module=None, uncaptured=None)  # its own call, as if its layers were unknown
        seen = self.runner.module is not None or self.runner.uncaptured is not None
        for runner in [self.runner, hidden] if seen else [hidden]:
            way = partial(
                memory_timeline.memory_timeline, runner, batch, statistics, context_bytes, memory_timeline.cuda_history
            )
            found = found or self.tried("memory timeline", way, found)
        return found or memory_timeline.memory_timeline(hidden, batch, statistics, context_bytes)


def explain(
    runner: Runner, work: Workload, events: list[TraceEvent], calls: int, clock: Clock,
    context_bytes: int | None,
) -> Diagnostics:  # fmt: skip
    """Explain the time and the memory that a stage takes."""
    inputs = work.inputs
    runner = runner.of_batches
    stage, batch = Explained(runner, work.model, inputs, work.folder), inputs[0]
    unknown: tuple[list[LayerTime], diagnostics.LayersSource | None] = ([], None)
    found, source = stage.tried("layers", lambda: stage.layers(events, calls), unknown)
    fused = stage.tried("fusion", lambda: fusion.fusion(runner, batch, events, calls, work.folder.name), None)
    return Diagnostics(
        layers=found,
        layers_source=source,
        split=stage.tried("time split", lambda: profiler.split(events, calls), None),
        growth=stage.tried("scaling", lambda: growth(runner, batch, clock), None),
        image_growth=stage.tried("scaling", lambda: image_growth(runner, batch, clock), None),
        layout=stage.tried("layout", lambda: stage.layout(fused, events, calls), []),
        fusion=fused,
        timeline=stage.tried("memory timeline", lambda: stage.memory(context_bytes), None),
        searches=stage.tried("searches", lambda: observed_execution.searches(runner, batch), []),
        notes=stage.notes,
    )


WARM_UP, TIMED = 2, 5  # calls of each batch size
FEWER_WARM_UP, FEWER_TIMED = 1, 3  # of each size of image, on a CPU
ROUNDS_SECONDS = 0.2  # of the calls on smaller images, alternating with those on whole ones


def growth(runner: Runner, batch: Batch, clock: Clock) -> BatchGrowth | None:
    """Measure calls, in seconds, on parts of the batch; at batch 1 on a GPU on 2 images. None if of one shape."""
    count = batch.shape[0]
    alone = count == 1 and not batch.is_cuda
    if runner.module is None or runner.uncaptured is not None or alone:
        return None
    sizes = sorted({max(1, count // 8), max(1, count // 2), count, 2 * count if count == 1 else count})
    seconds = []
    with torch.inference_mode():
        for size in sizes:
            parts = (torch.cat([part] * -(-size // len(part)))[:size].contiguous() for part in batch)
            given = Batch(tuple(parts), batch.names)
            for _ in range(WARM_UP):
                runner.run(given)
            clock.synchronize()
            seconds.append(median(_call_seconds(runner, given, clock) for _ in range(TIMED)))
    return BatchGrowth(sizes, seconds)


def image_growth(runner: Runner, batch: Batch, clock: Clock) -> ImageGrowth | None:
    """Measure on a CPU, in seconds, the fastest calls on the upper left quarter of images and on the whole."""
    # From one image to two, torch takes other libraries there. The sizes are interleaved; the least time leaves out
    # what other programs add.
    if len(batch.shape) != IMAGE_RANK or len(batch.tensors) > 1:
        return None
    height, width = batch.shape[-2:]
    if batch.is_cuda or runner.module is None or runner.uncaptured is not None or height % 2 or width % 2:
        return None
    quarter = batch.mapped(lambda part: part[..., : height // 2, : width // 2].contiguous())
    taken: list[list[float]] = []
    began = clock.now()
    with torch.inference_mode():
        while len(taken) < FEWER_WARM_UP + FEWER_TIMED or clock.now() - began < ROUNDS_SECONDS:
            taken.append([_call_seconds(runner, each, clock) for each in (quarter, batch)])
    seconds = [min(rounds) for rounds in zip(*taken[FEWER_WARM_UP:], strict=True)]
    return ImageGrowth([height * width // 4, height * width], seconds)


def _call_seconds(runner: Runner, batch: Batch, clock: Clock) -> float:
    start = clock.now()
    runner.run(batch)
    clock.synchronize()
    return clock.now() - start
