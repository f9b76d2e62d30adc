"""Ratios, times and latencies with their 95 % intervals, from raw samples.

The interval of a ratio is that of a median by order statistics (Conover, Practical Nonparametric Statistics, 3.2). It
assumes independent blocks and no distribution of the noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Literal

import numpy as np

from pipeline.records.samples import Block, Pair, Sample

Side = Literal["baseline", "stage"]

OUTLIER_MADS = 14.8  # ten standard deviations of normal noise
RESAMPLES = 2000  # of a bootstrap
NORMAL = 1.96  # standard deviations that hold 95 %
# Between-run standard deviation of ln ratio, the variation within a run taken out: 41 A/A control pairs of eager fp32
# at batch 1 on an H200 (docs/h200/aa_pairs). It stands in for a run that has too few pairs to estimate its own.
TYPICAL_BETWEEN_RUN_STD = 0.0011
MIN_AA_PAIRS = 5  # from which a run's own estimate is used


@dataclass(frozen=True)
class Ratio:
    """The baseline's time over the stage's: above 1, the stage is faster."""

    value: float
    low: float  # of the 95 % interval
    high: float
    blocks: int
    trials: int = 1
    bounded: bool = True  # False where no 95 % interval exists, and low and high are extremes: fewer than six blocks
    drift: float = 0.0  # of the baseline, as a difference of logs, by which both ends of the interval were moved apart
    taken: float = 0.0  # share of the run's processors that other programs took, where that was so much that no
    # interval holds for the machine: the two sides needn't bear it alike

    @property
    def has_ends(self) -> bool:
        """Whether low and high are the blocks' interval, even one that on a busy machine isn't the ratio's own."""
        return self.bounded or (self.taken > 0 and interval_rank(self.blocks) > 0)


ITSELF = Ratio(1.0, 1.0, 1.0, 0)


@dataclass(frozen=True)
class Estimate:
    """A median with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Latency:
    """Percentiles of the latencies, in seconds."""

    p50: float
    p90: float
    p99: float


def block_log_ratio(block: Block) -> float:
    """(ln A1 + ln A2 − ln B1 − ln B2) / 2."""
    first, second = block.baseline
    third, fourth = block.stage
    return 0.5 * math.log(first.per_call * second.per_call / (third.per_call * fourth.per_call))


def log_ratios(pairs: Pair | Sequence[Pair]) -> np.ndarray:
    """The log-ratio of every block of all trials."""
    trials = [pairs] if isinstance(pairs, Pair) else pairs
    return np.array([block_log_ratio(block) for pair in trials for block in pair.blocks])


@cache
def interval_rank(count: int) -> int:
    """k, so that x(k) to x(count − k + 1) holds the median with 95 %; 0 where no such interval exists.

    The 2.5 % quantile of the binomial distribution of `count` tosses of a fair coin, in whole numbers.
    """
    ways = accumulate(math.comb(count, heads) for heads in range(count + 1))
    return next(heads for heads, so_far in enumerate(ways) if 40 * so_far >= 2**count)


def median_interval(values: np.ndarray) -> tuple[float, float, float, bool]:
    """Median, low, high, and whether low to high is a 95 % interval (else the extremes)."""
    ordered = np.sort(values)
    rank = interval_rank(len(ordered))
    low, high = ordered[max(rank, 1) - 1], ordered[len(ordered) - max(rank, 1)]
    return float(np.median(ordered)), float(low), float(high), rank > 0


def ratio(pairs: Pair | Sequence[Pair], spread: float = 0.0) -> Ratio:
    """The ratio of one pair, or of several trials of the same two stages.

    With several trials the value is the geometric mean of the trials' medians, and the interval the wider of two:
    that of all blocks together, and Student's over the trials' medians.

    Args:
        pairs: the trials.
        spread: the between-run standard deviation (`between_run_std`). A trial is one sample of all possible trials:
            the blocks' interval alone covered the truth in 20 of 41 A/A pairs on an H200; widened by the spread
            estimated from every second pair, it covered the truth in 38 of 41.

    Raises:
        ValueError: no blocks.
    """
    trials = [pairs] if isinstance(pairs, Pair) else list(pairs)
    logs = [log_ratios(pair) for pair in trials if pair.blocks]
    if not logs:
        raise ValueError("a ratio needs at least one block")
    value, low, high, bounded = median_interval(np.concatenate(logs))
    if len(logs) > 1:
        centres = np.array([np.median(part) for part in logs])
        value = float(centres.mean())
        between = _student_half_width(centres)
        if 2 * between > high - low:
            low, high = value - between, value + between
        low, high = min(low, value), max(high, value)
    low, high = _widened(value, low, high, spread / math.sqrt(len(logs)))
    return Ratio(math.exp(value), math.exp(low), math.exp(high), sum(len(part) for part in logs), len(logs), bounded)


def _student_half_width(values: np.ndarray) -> float:
    return student(len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t with so many degrees of freedom."""
    from scipy.special import stdtrit  # scipy.stats says the same, and takes two seconds to import

    return float(stdtrit(freedom, 0.975))


def _widened(value: float, low: float, high: float, spread: float) -> tuple[float, float]:
    """The interval of logs, widened by an independent normal spread: the variances add."""
    more = NORMAL * spread
    return value - math.hypot(value - low, more), value + math.hypot(high - value, more)


def between_run_std(aa_pairs: Sequence[Pair]) -> float:
    """The standard deviation of ln ratio between trials: that of the A/A pairs' medians, less that within a pair.

    An estimate from few pairs is rough, so it is scaled by Student's t over the normal quantile.
    """
    logs = [log_ratios(pair) for pair in aa_pairs if pair.blocks]
    if not logs:
        return TYPICAL_BETWEEN_RUN_STD
    found = [median_interval(part)[:3] for part in logs]
    within = [(high - low) / (2 * NORMAL) for _, low, high in found]
    variance = sum(value**2 - width**2 for (value, _, _), width in zip(found, within, strict=True)) / len(found)
    own = math.sqrt(max(0.0, variance)) * student(len(found)) / NORMAL
    return own if len(found) >= MIN_AA_PAIRS else TYPICAL_BETWEEN_RUN_STD


def half_width(found: Ratio) -> float:
    """Half of the interval's width, relative to the value."""
    return 0.5 * (found.high - found.low) / found.value


def inverse(found: Ratio) -> Ratio:
    """The ratio of the other stage to this one."""
    return replace(found, value=1 / found.value, low=1 / found.high, high=1 / found.low)


def composed(stage: Pair | Sequence[Pair], other: Pair | Sequence[Pair], spread: float = 0.0, seed: int = 0) -> Ratio:
    """The other stage's time over this stage's, both measured against the same baseline.

    The difference of two medians of logs, with a bootstrap interval (BCa: Efron 1987).

    Raises:
        ValueError: no blocks on one side.
    """
    from scipy.stats import bootstrap

    ours, theirs = log_ratios(stage), log_ratios(other)
    if not len(ours) or not len(theirs):
        raise ValueError("a ratio needs at least one block")
    value = low = high = float(np.median(ours) - np.median(theirs))
    bounded = min(len(ours), len(theirs)) >= 6
    if bounded and (np.ptp(ours) > 0 or np.ptp(theirs) > 0):
        found = bootstrap(
            (ours, theirs), _median_difference, n_resamples=RESAMPLES, method="BCa", rng=np.random.default_rng(seed)
        ).confidence_interval
        low, high = float(found.low), float(found.high)
    elif not bounded:
        low, high = float(ours.min() - theirs.max()), float(ours.max() - theirs.min())
    low, high = _widened(value, low, high, spread)
    return Ratio(math.exp(value), math.exp(low), math.exp(high), min(len(ours), len(theirs)), 1, bounded)


def _median_difference(ours: np.ndarray, theirs: np.ndarray, axis: int) -> np.ndarray:
    return np.asarray(np.median(ours, axis=axis) - np.median(theirs, axis=axis))


def samples_of(pairs: Pair | Sequence[Pair], side: Side) -> list[Sample]:
    """All samples of one side, in the order they were taken."""
    trials = [pairs] if isinstance(pairs, Pair) else pairs
    return [part for pair in trials for block in pair.blocks for part in getattr(block, side)]


def seconds_per_call(pairs: Pair | Sequence[Pair], side: Side = "stage") -> Estimate:
    """Median seconds per call over the samples of one side.

    Raises:
        ValueError: no blocks.
    """
    taken = np.array([part.per_call for part in samples_of(pairs, side)])
    if not len(taken):
        raise ValueError("a time needs at least one block")
    return Estimate(*median_interval(taken)[:3])


def latency(latencies: Sequence[float]) -> Latency:
    """The percentiles of single calls' latencies, in seconds.

    Raises:
        ValueError: there are none.
    """
    if not latencies:
        raise ValueError("a latency needs at least one call")
    p50, p90, p99 = np.percentile(np.asarray(latencies), [50, 90, 99])
    return Latency(float(p50), float(p90), float(p99))


def outliers(values: Sequence[float]) -> list[bool]:
    """Which values lie more than 14.8 median absolute deviations from the median; they are marked, never dropped."""
    taken = np.asarray(values)
    away = np.abs(taken - np.median(taken))
    return [bool(part) for part in away > OUTLIER_MADS * np.median(away)]
