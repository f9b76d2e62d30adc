"""The parent's side of a measurement: samples of two workers, interleaved in blocks of four."""

import random
from collections.abc import Callable
from typing import Literal, Protocol

from pipeline.records.plan import Plan
from pipeline.records.samples import Block, Pair, Sample
from pipeline.stats.intervals import half_width, ratio

LEAST_BLOCKS = 6  # without which no order statistic bounds a median at 95 %
PATIENCE = 5  # times `sampling_seconds`, after which not even those are waited for


class Sampler(Protocol):
    """A worker that takes a sample when told, and rests otherwise."""

    @property
    def name(self) -> str:
        """The stage's name."""

    def sample(self) -> Sample:
        """One timed sample, taken now."""


def ignore(_blocks: int) -> None:
    """Nobody wants to know how far the sampling is."""


def interleave(
    baseline: Sampler,
    stage: Sampler,
    plan: Plan,
    rng: random.Random,
    now: Callable[[], float],
    on_block: Callable[[int], None] = ignore,
) -> Pair:
    """Blocks ABBA or BAAB, until an interim analysis finds the interval narrow enough, or blocks or time are used up.

    On a slow machine the first few blocks, without which there is no interval, may take some times as long.

    Within a block a steady drift and the place in the order cancel out; the draw keeps a rhythm of the machine from
    falling in step with the order. Analysing only at set numbers of blocks keeps the interval's coverage.

    Args:
        baseline: A.
        stage: B.
        plan: gives `interim_analyses`, `half_width` and `sampling_seconds`.
        rng: draws the orders.
        now: seconds.
        on_block: told the number of blocks after each.
    """
    opened = now()
    blocks: list[Block] = []
    *interim, most = plan.interim_analyses
    least = min(LEAST_BLOCKS, plan.interim_analyses[0])
    while len(blocks) < most:
        patience = PATIENCE if len(blocks) < least else 1
        if blocks and now() - opened >= patience * plan.sampling_seconds:
            break
        blocks.append(sample_block(baseline, stage, "ABBA" if rng.random() < 0.5 else "BAAB"))
        on_block(len(blocks))
        if len(blocks) in interim and _narrow(Pair(baseline.name, stage.name, blocks), plan.half_width):
            break
    return Pair(baseline.name, stage.name, blocks)


def _narrow(pair: Pair, enough: float) -> bool:
    found = ratio(pair)
    return found.bounded and half_width(found) <= enough


def sample_block(baseline: Sampler, stage: Sampler, order: Literal["ABBA", "BAAB"]) -> Block:
    """Four samples in that order."""
    first, second, third, fourth = [(baseline if side == "A" else stage).sample() for side in order]
    outer, inner = (first, fourth), (second, third)
    return Block(order, outer, inner) if order == "ABBA" else Block(order, inner, outer)
