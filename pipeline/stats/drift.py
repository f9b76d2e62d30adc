"""How the machine's pace changed while stages were measured, and who else was at work, and ratios that allow for it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from pipeline.records.samples import Pair, Sample
from pipeline.stats.intervals import Ratio, composed, ratio, samples_of

DRIFT_UNFAIR = 0.10
CROWDED = 0.10  # of the run's processors, from which on what other programs take is no noise
END_SHARE = 0.25  # of the samples at each end, between which the baseline's drift is taken


def drift(first: Sequence[Sample], last: Sequence[Sample]) -> float:
    """How much slower the last samples are than the first: the ratio of the medians, minus 1."""
    return median(part.per_call for part in last) / median(part.per_call for part in first) - 1


def drift_within(taken: Sequence[Sample]) -> float:
    """The drift from the first to the last quarter of one side's samples, in the order they were taken."""
    end = max(1, int(END_SHARE * len(taken)))
    return drift(taken[:end], taken[-end:])


def drifts_of(pairs: Sequence[Pair]) -> list[float]:
    """The baseline's drift within each pair that is long enough to show one."""
    return [drift_within(samples_of(pair, "baseline")) for pair in pairs if len(pair.blocks) >= 1 / END_SHARE]


def is_unfair(change: float | None) -> bool:
    """Whether the baseline drifted so far that times taken at different moments mislead."""
    return change is not None and abs(change) >= DRIFT_UNFAIR


def unfair_drift(pairs: Sequence[Pair]) -> float:
    """The largest unfair drift within the pairs, as a difference of logs; 0 where there is none.

    A block takes part of its samples at a pace and part at another. Whatever the order, that moves its log ratio by at
    most the difference between the two paces' logs; a steady drift cancels out and moves it by nothing.
    """
    return max(map(unfair_part, drifts_of(pairs)), default=0.0)


def unfair_part(change: float) -> float:
    """A drift as a difference of logs where it is unfair, else 0."""
    return abs(math.log1p(change)) if is_unfair(change) else 0.0


def taken_by_others(pairs: Sequence[Pair]) -> float:
    """The largest share of the run's processors that others took while a pair was sampled; 0 where it is none to mind.

    Two sides that wait for processors needn't wait alike, and no order of samples cancels that: one that gives its
    work to threads which wait for each other loses more than one that doesn't.
    """
    shares = [pair.taken_share for pair in pairs if pair.blocks and pair.taken_share is not None]
    return max((share for share in shares if share >= CROWDED), default=0.0)


def steady_ratio(pairs: Sequence[Pair], spread: float = 0.0) -> Ratio:
    """The ratio of some trials, as `ratio`; an unfair drift within them moves both ends of its interval apart.

    It has no interval where other programs took the run's processors.
    """
    return allowing(ratio(pairs, spread), unfair_drift(pairs), taken_by_others(pairs))


def steady_composed(stage: Sequence[Pair], other: Sequence[Pair], spread: float = 0.0) -> Ratio:
    """As `composed`; what `steady_ratio` allows for counts in the pairs of either."""
    taken = max(taken_by_others(stage), taken_by_others(other))
    return allowing(composed(stage, other, spread), unfair_drift(stage) + unfair_drift(other), taken)


def allowing(found: Ratio, drift: float, taken: float = 0.0) -> Ratio:
    """The ratio with both ends of its interval moved apart by a drift, or without an interval on a busy machine."""
    factor, bounded = math.exp(drift), found.bounded and not taken
    return replace(found, low=found.low / factor, high=found.high * factor, bounded=bounded, drift=drift, taken=taken)
