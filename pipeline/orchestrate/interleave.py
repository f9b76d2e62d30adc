"""Samples of two workers, interleaved in blocks of four."""

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from pipeline.orchestrate import processes
from pipeline.orchestrate.worker_process import WorkerGone, WorkerProcess
from pipeline.records.plan import Plan
from pipeline.records.samples import Block, Pair, Sample
from pipeline.stats.intervals import half_width, ratio

LEAST_BLOCKS = 6  # without which no order statistic bounds a median at 95 %
PATIENCE = 5  # times `sampling_seconds`, after which not even those are waited for


class Sampler(Protocol):
    """A worker that takes a sample when told, and rests otherwise."""

    name: str  # the stage's

    def sample(self) -> Sample:
        """Take one timed sample."""


class InterleavedWorker:
    """One of two workers; the other one is stopped while this one is timed."""

    def __init__(self, worker: WorkerProcess, other: WorkerProcess, brief: bool) -> None:
        self.name = worker.name
        self.use = processes.Use()
        self.brief = brief
        self._worker, self._other = worker, other

    def sample(self) -> Sample:
        """Take one timed sample; raise WorkerGone if the worker has ended, or as `WorkerProcess.sample`."""
        if not self._worker.alive:
            raise WorkerGone("killed", f"{self._worker.death()[1]} while it waited for its turn")
        self._worker.resume()
        self._other.suspend()
        (taken,), used = counted_samples(self._worker, 1, self.brief)
        self.use = self.use.further(used)
        return taken


@contextmanager
def interleaved(
    first: WorkerProcess, second: WorkerProcess, brief: bool = False
) -> Iterator[tuple[InterleavedWorker, InterleavedWorker]]:
    """Give both workers for interleaved samples, `brief` ones if so asked; both run again afterwards."""
    try:
        yield InterleavedWorker(first, second, brief), InterleavedWorker(second, first, brief)
    finally:
        for worker in (first, second):
            worker.resume()


def counted_samples(worker: WorkerProcess, count: int, brief: bool = False) -> tuple[list[Sample], processes.Use]:
    """Take `count` timed samples, and count the processor time used meanwhile."""
    before = processes.now(worker.process_id)
    taken = [worker.sample(brief) for _ in range(count)]
    return taken, processes.between(before, processes.now(worker.process_id))


def interleave(
    baseline: Sampler, stage: Sampler, plan: Plan, rng: random.Random, now: Callable[[], float],
    on_block: Callable[[int], None] = lambda _: None,
) -> Pair:  # fmt: skip
    """Take blocks ABBA or BAAB until an interim analysis finds the interval narrow, or blocks or time are used up.

    Within a block a steady drift and the place in the order cancel out; the random order breaks rhythms of the machine.
    Analysing only at set numbers of blocks keeps the interval's coverage. `on_block` is told how many there are.
    """
    opened = now()
    blocks: list[Block] = []
    *interim, most = plan.interim_analyses
    least = min(LEAST_BLOCKS, plan.interim_analyses[0])
    while len(blocks) < most:
        patience = PATIENCE if len(blocks) < least else 1
        if blocks and now() - opened >= patience * plan.sampling_seconds:
            break
        a_first = rng.random() < 0.5
        one, other = (baseline, stage) if a_first else (stage, baseline)
        first, second, third, fourth = [side.sample() for side in (one, other, other, one)]
        outer, inner = (first, fourth), (second, third)
        blocks.append(Block("ABBA", outer, inner) if a_first else Block("BAAB", inner, outer))
        on_block(len(blocks))
        pair = Pair(baseline.name, stage.name, blocks)
        if len(blocks) in interim and (so_far := ratio(pair)).bounded:
            enough = max(plan.half_width, plan.clear_share * abs(math.log(so_far.value)))
            if half_width(so_far) <= enough:
                break
    return pair
