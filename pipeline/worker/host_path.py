"""Time the path around a network, from images in host memory to classes there: step by step, then as a ring."""

import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from models.image_batches import normaliser
from pipeline.compiler.agreement import classes
from pipeline.compiler.batch import Batch, batched
from pipeline.measure.clock import Clock
from pipeline.measure.sampling import calls_per_sample, page_locked, undisturbed
from pipeline.records.plan import Plan
from pipeline.records.samples import HostPath
from pipeline.stages.api import Workload

Lane = Literal["up", "net", "down"]
NO_COPIES = "on a CPU nothing is copied to a device, so no copy can overlap"
SLOTS = 3  # of the ring: a batch going up, one in the network, one coming down
SAMPLES = 5  # of each layout, interleaved
SAMPLE_SECONDS = 0.2
LONGEST = 10  # times `latency_seconds`, after which no round of samples begins


class Lanes:
    """The queues of a CUDA device: the network on the current stream, the copies on streams of their own."""

    def __init__(self) -> None:
        self.streams = {"up": torch.cuda.Stream(), "net": torch.cuda.current_stream(), "down": torch.cuda.Stream()}

    def put(self, lane: Lane, work: Callable[[], object], after: Sequence[torch.cuda.Event]) -> torch.cuda.Event:
        """Queue it on the lane's stream, behind the events."""
        stream, mark = self.streams[lane], torch.cuda.Event()
        for event in after:
            stream.wait_event(event)
        with nullcontext() if lane == "net" else torch.cuda.stream(stream):
            work()
        mark.record(stream)
        return mark

    def finish(self, mark: torch.cuda.Event) -> None:
        """Wait for the event."""
        mark.synchronize()


@dataclass(frozen=True)
class Layout:
    """One variant of the path."""

    move: Literal["as it is", "uint8 in", "classes out", "ring"]
    inputs: list[Batch]
    call: Callable[[Batch], Tensor]
    ring: bool = False


@dataclass
class Slot:
    """Buffers of one batch on its way: on the device, and for its answer in the host's memory."""

    given: Batch
    answer: Tensor
    down: Tensor
    mark: torch.cuda.Event | None = None  # of the answer's arrival


class Path:
    """Calls one after another from the host's memory and back; without a ring each waits for the one before it."""

    def __init__(self, layout: Layout, lanes: Lanes, device: torch.device, pinned: bool) -> None:
        self.layout, self.lanes, self.number = layout, lanes, 0
        first = layout.inputs[0].mapped(lambda part: part.to(device))
        with torch.inference_mode():
            answer = layout.call(first)
        # Made outside of inference mode: for a batch made in it, Dynamo would compile again.
        there, here = (torch.empty(answer.shape, dtype=answer.dtype, device=place) for place in (device, "cpu"))
        self.slots = [
            Slot(first.mapped(torch.empty_like), there.clone(), page_locked(here) if pinned else here.clone())
            for _ in range(SLOTS if layout.ring else 1)
        ]

    def send(self) -> Slot:
        """Start the next batch once its slot's last answer has arrived; return the slot."""
        slot = self.slots[self.number % len(self.slots)]
        batch = self.layout.inputs[self.number % len(self.layout.inputs)]
        self.number += 1
        if slot.mark is not None:
            self.lanes.finish(slot.mark)
        up = self.lanes.put("up", lambda: slot.given.copy_(batch), [])
        net = self.lanes.put("net", lambda: slot.answer.copy_(self.layout.call(slot.given)), [up])
        slot.mark = self.lanes.put("down", lambda: slot.down.copy_(slot.answer, non_blocking=True), [net])
        return slot

    def drain(self) -> None:
        """Wait for all answers."""
        for slot in self.slots:
            if slot.mark is not None:
                self.lanes.finish(slot.mark)

    def seconds(self, calls: int, clock: Clock) -> float:
        """Return the seconds per call of `calls` calls, from the first image to the last answer."""
        start = clock.now()
        for _ in range(calls):
            self.send()
        self.drain()
        return (clock.now() - start) / calls


def layouts(work: Workload, call: Callable[[Batch], Tensor], has_masks: bool, pinned: bool) -> list[Layout]:
    """Return the plain path, and then one improvement after another that the network allows."""
    held = page_locked if pinned else torch.Tensor.contiguous
    kept = [batch.mapped(lambda part: held(part.cpu())) for batch in work.inputs]
    variants = [Layout("as it is", kept, call)]
    images = work.images
    normalises = work.batches[0].dtype == torch.uint8  # the stage itself
    if images is not None and images.dtype == np.uint8 and not normalises and not work.others:
        size = work.shape[0]
        parts = [torch.tensor(images[at : at + size]) for at in range(0, size * len(work.batches), size)]
        normalise = normaliser(work.contract, images.dtype, images.ndim, work.device)
        bytes_in = [batched(held(part)) for part in parts]

        def from_bytes(batch: Batch) -> Tensor:
            with torch.inference_mode(False), torch.no_grad():  # else Dynamo would compile again
                ready = batched(normalise(batch.first.float()))
            return call(ready)

        variants.append(Layout("uint8 in", bytes_in, from_bytes))
    if has_masks:
        before = variants[-1]
        variants.append(Layout("classes out", before.inputs, lambda batch: classes(before.call(batch))))
    return [*variants, Layout("ring", variants[-1].inputs, variants[-1].call, ring=True)]


def measure(
    work: Workload, call: Callable[[Batch], Tensor], has_masks: bool, clock: Clock, plan: Plan, lanes: Lanes
) -> list[HostPath]:
    """Measure each variant in interleaved samples."""
    pinned = work.device.type == "cuda"
    paths = [Path(layout, lanes, work.device, pinned) for layout in layouts(work, call, has_masks, pinned)]
    with undisturbed():
        taken: list[list[float]] = [[] for _ in paths]
        each = [statistics.median(path.seconds(SLOTS, clock) for _ in range(3)) for path in paths]
        wanted = min(SAMPLE_SECONDS, plan.latency_seconds)
        calls = [calls_per_sample(seconds, wanted, 2 * SLOTS) for seconds in each]
        opened = clock.now()
        for number in range(SAMPLES):
            if number and clock.now() - opened > LONGEST * plan.latency_seconds:
                break
            for path, count, seconds in zip(paths, calls, taken, strict=True):
                path.seconds(len(path.slots), clock)
                seconds.append(path.seconds(count, clock))
    return [
        HostPath(path.layout.move, seconds, path.layout.inputs[0].size_bytes, batched(path.slots[0].down).size_bytes)
        for path, seconds in zip(paths, taken, strict=True)
    ]
