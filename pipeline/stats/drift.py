"""How the machine's pace changed while stages were measured, as the baseline shows it, and ratios that allow for it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from pipeline.records.samples import Pair, Sample
from pipeline.stats.intervals import Ratio, composed, ratio, samples_of

DRIFT_UNFAIR = 0.10
END_SHARE = 0.25  # of the samples at each end, between which the baseline's drift is taken


def drift(first: Sequence[Sample], last: Sequence[Sample]) -> float:
    """How much slower the last samples are than the first: the ratio of the medians, minus 1."""
    return median(part.per_call for part in last) / median(part.per_call for part in first) - 1


def drift_within(pair: Pair) -> float:
    """The baseline's drift from the first to the last quarter of its samples."""
    taken = samples_of(pair, "baseline")
    end = max(1, int(END_SHARE * len(taken)))
    return drift(taken[:end], taken[-end:])


def drifts_of(pairs: Sequence[Pair]) -> list[float]:
    """The baseline's drift within each pair that is long enough to show one."""
    return [drift_within(pair) for pair in pairs if len(pair.blocks) >= 1 / END_SHARE]


def is_unfair(change: float | None) -> bool:
    """Whether the baseline drifted so far that times taken at different moments mislead."""
    return change is not None and abs(change) >= DRIFT_UNFAIR


def unfair_drift(pairs: Sequence[Pair]) -> float:
    """The largest unfair drift within the pairs, as a difference of logs; 0 where there is none.

    A block takes part of its samples at a pace and part at another. Whatever the order, that moves its log ratio by at
    most the difference between the two paces' logs; a steady drift cancels out and moves it by nothing.
    """
    return max((abs(math.log1p(change)) for change in drifts_of(pairs) if is_unfair(change)), default=0.0)


def steady_ratio(pairs: Sequence[Pair], spread: float = 0.0) -> Ratio:
    """The ratio of some trials, as `ratio`; an unfair drift within them moves both ends of its interval apart."""
    return _allowing(ratio(pairs, spread), unfair_drift(pairs))


def steady_composed(stage: Sequence[Pair], other: Sequence[Pair], spread: float = 0.0) -> Ratio:
    """As `composed`; an unfair drift within the pairs of either moves both ends of the interval apart."""
    return _allowing(composed(stage, other, spread), unfair_drift(stage) + unfair_drift(other))


def _allowing(found: Ratio, drift: float) -> Ratio:
    factor = math.exp(drift)
    return replace(found, low=found.low / factor, high=found.high * factor, drift=drift)
