"""The path around a net: every layout gives the same answers, however the device's queues run beside each other."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path as Folder
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from models.image_batches import to_batch
from pipeline.compiler.agreement import classes
from pipeline.compiler.batch import Batch, batched
from pipeline.inputs.input_contract import NAMED, InputContract
from pipeline.measure.clock import Clock
from pipeline.stages.api import Workload
from pipeline.stages.common.ends import ends_of
from pipeline.worker import run_stage
from pipeline.worker.host_path import SAMPLES, SLOTS, Lane, Lanes, Path, layouts, measure
from tests.worker.jobs import PLAN

CPU = torch.device("cpu")
IMAGES = np.random.default_rng(0).integers(0, 256, (8, 4, 6, 3), np.uint8)
IMAGES.flags.writeable = False  # as those are that a file is mapped for
CONTRACT = InputContract(3, "imagenet", *NAMED["imagenet"])


class Mark:
    def __init__(self, lane: Lane, work: Callable[[], object], after: Sequence["Mark"]) -> None:
        self.lane, self.work, self.after, self.done = lane, work, after, False


class LateLanes(Lanes):
    """Queues that do nothing before somebody waits, and then in any order that lanes and marks leave open."""

    def __init__(self, seed: int) -> None:
        self.draw, self.queues = random.Random(seed), {"up": [], "net": [], "down": []}  # type: ignore[var-annotated]

    def put(self, lane: Lane, work: Callable[[], object], after: Sequence[Any]) -> Any:
        mark = Mark(lane, work, after)
        self.queues[lane].append(mark)
        return mark

    def finish(self, mark: Any) -> None:
        while not mark.done:
            ready = [queue for queue in self.queues.values() if queue and all(each.done for each in queue[0].after)]
            first = self.draw.choice(ready).pop(0)
            first.work()
            first.done = True


class FakeClock(Clock):
    def __init__(self) -> None:
        super().__init__(CPU)
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 1e-3
        return self.seconds


def work_of(images: np.ndarray = IMAGES) -> Workload:
    batches = list(to_batch(images, CONTRACT).split(2))
    return Workload(nn.Identity(), batches, CPU, Folder(), images=images, contract=CONTRACT)


def one_buffer() -> Callable[[Batch], Tensor]:
    """A stage that writes every answer into the same memory, as a replayed graph does."""
    kept = torch.empty(2, 3, 4, 6)

    def run(batch: Batch) -> Tensor:
        assert not batch.first.is_inference(), "or Dynamo would compile again"
        return kept.copy_(2 * batch.first)

    return run


@pytest.mark.parametrize("seed", range(5))
def test_every_layout_answers_as_the_net_does(seed: int) -> None:
    work = work_of()
    found = layouts(work, one_buffer(), has_masks=True, pinned=False)
    assert [layout.move for layout in found] == ["as it is", "uint8 in", "classes out", "ring"]
    assert [layout.ring for layout in found] == [False, False, False, True]
    for layout in found:
        path, answers = Path(layout, LateLanes(seed), CPU, pinned=False), []
        with torch.inference_mode():
            slots = [path.send() for _ in range(len(path.slots))]
            path.drain()
            answers = [slot.down.clone() for slot in slots]
        for answer, batch in zip(answers, work.batches, strict=False):
            logits = 2 * batch
            right = classes(logits) if layout.move in ("classes out", "ring") else logits
            torch.testing.assert_close(answer, right, rtol=1e-4, atol=1e-5)


def test_a_stage_with_ends_has_the_path_of_its_own_call() -> None:
    work = work_of().called_with(ends_of(CONTRACT, True, True, 4, CPU))
    found = layouts(work, lambda batch: work.model(batch.first), has_masks=False, pinned=False)
    assert [(it.move, it.inputs[0].first.dtype) for it in found] == [("as it is", torch.uint8), ("ring", torch.uint8)]


def test_what_a_ring_holds_at_once() -> None:
    lanes, ring = LateLanes(0), layouts(work_of(), one_buffer(), False, False)[-1]
    path = Path(ring, lanes, CPU, pinned=False)
    with torch.inference_mode():
        for _ in range(SLOTS):
            path.send()
        assert [len(queue) for queue in lanes.queues.values()] == [SLOTS] * 3, "nothing was waited for"
        path.send()
        assert len(lanes.queues["down"]) == SLOTS
        path.drain()
    assert not any(lanes.queues.values())


def test_a_path_is_measured_move_by_move() -> None:
    found = measure(work_of(), one_buffer(), True, FakeClock(), replace(PLAN, latency_seconds=1e6), LateLanes(1))
    brief = measure(work_of(), one_buffer(), True, FakeClock(), replace(PLAN, latency_seconds=0.001), LateLanes(1))
    assert {len(part.seconds_per_call) for part in brief} == {1}
    values = 2 * 3 * 4 * 6
    assert [(part.move, part.bytes_in, part.bytes_out) for part in found] == [
        ("as it is", 4 * values, 4 * values),
        ("uint8 in", values, 4 * values),
        ("classes out", values, values // 3),
        ("ring", values, values // 3),
    ]
    assert {len(part.seconds_per_call) for part in found} == {SAMPLES}
    assert all(each > 0 for part in found for each in part.seconds_per_call)


def test_what_has_neither_bytes_nor_classes_has_a_ring_alone() -> None:
    floats = work_of(IMAGES.astype(np.float32) / 255)
    several = replace(work_of(), others={"timestep": [torch.zeros(2)] * 4})
    for work in (floats, several):
        found = layouts(work, lambda batch: batch.first, has_masks=False, pinned=False)
        assert [layout.move for layout in found] == ["as it is", "ring"]
    assert [part.shape for part in found[0].inputs[0]] == [(2, 3, 4, 6), (2,)]
    assert batched(floats.batches[0]).shape == (2, 3, 4, 6)


def test_on_a_cpu_there_is_nothing_to_move() -> None:
    class OnACpu:
        job = type("Job", (), {"device": "cpu"})

    assert run_stage.host_path_of(OnACpu()) == {  # type: ignore[arg-type]
        "host_path_left_out": "on a CPU nothing is copied to a device, so no copy can overlap"
    }
