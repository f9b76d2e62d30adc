"""Ratios, times and latencies with their 95 % intervals, from raw samples.

The interval of a ratio is that of a median by order statistics (Conover, Practical Nonparametric Statistics, 3.2). It
assumes independent blocks and no distribution of the noise. `steady_ratio` and `steady_composed` also allow for a
machine that changed its pace, or that other programs used.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from statistics import median
from typing import Literal

import numpy as np

from pipeline.records.samples import Pair, Sample

Side = Literal["baseline", "stage"]
Doubt = Literal["few blocks", "busy machine", "baseline drifted"]

RESAMPLES = 2000  # of a bootstrap
NORMAL = 1.96  # standard deviations that hold 95 %
# Between-run standard deviation of ln ratio, the variation within a run taken out: 41 A/A control pairs of eager fp32
# at batch 1 on an H200 (docs/h200/aa_pairs until commit 4f91918d). It stands in where a run has too few pairs.
TYPICAL_BETWEEN_RUN_STD = 0.0011
# Standard deviation of ln ratio between builds on several H200s, by stage; that of torch.compile stands for any other.
# fp8's holds other trainings too: five runs of the classic network at batch 8 had 5.03, 5.06, 5.26, 5.47 and 5.47 ×.
BETWEEN_BUILDS = {"compile": 0.014, "compile_max": 0.013, "fused": 0.007, "fp8": 0.04}
MIN_AA_PAIRS = 5  # from which a run's own estimate is used
DRIFT_UNFAIR = 0.10
CROWDED = 0.10  # share of the run's processors above which other programs are more than noise
P99_CALLS = 1000  # from which a p99 is told: ten calls lie beyond it
BOUND_CALLS = {0.90: 30, 0.99: 300}  # from which a quantile has a 95 % upper limit: 0.99 ** 300 < 0.05
END_SHARE = 0.25  # of the samples at each end, between which the baseline's drift is measured


@dataclass(frozen=True)
class Ratio:
    """The baseline's time over the stage's: above 1, the stage is faster."""

    value: float  # the median over the blocks
    low: float  # end of the 95 % interval; the extreme of the blocks where fewer than six exist
    high: float  # the other end
    blocks: int  # behind it
    trials: int = 1  # behind it
    # why `low` to `high` is not simply the interval of the blocks. "few blocks" and "busy machine" leave no
    # interval; a drift only widens it
    doubt: Doubt | None = None
    # of the doubt: the drift as a difference of logs, or the share of processors that other programs took
    amount: float = 0.0

    @property
    def bounded(self) -> bool:
        """True if a 95 % interval exists."""
        return self.doubt in (None, "baseline drifted")

    @property
    def taken(self) -> float:
        """Share of the processors that other programs took; 0 below what matters."""
        return self.amount if self.doubt == "busy machine" else 0.0

    @property
    def drift(self) -> float:
        """Drift of the baseline by which the interval was widened, as a difference of logs."""
        return self.amount if self.doubt == "baseline drifted" else 0.0


ITSELF = Ratio(1.0, 1.0, 1.0, 0)


@dataclass(frozen=True)
class Estimate:
    """A median with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Latency:
    """Percentiles of single calls' latencies, in seconds."""

    p50: float  # of any number of calls
    p90: float
    p99: float | None  # None of fewer than `P99_CALLS` calls
    slowest: float  # of all calls
    calls: int  # their number
    p90_limit: float | None  # upper ends of 95 % intervals; None where too few calls have one
    p99_limit: float | None


def log_ratios(pairs: Pair | Sequence[Pair]) -> np.ndarray:
    """Return the log-ratio of every block of all trials: (ln A1 + ln A2 − ln B1 − ln B2) / 2."""
    logs = []
    for block in (block for pair in ([pairs] if isinstance(pairs, Pair) else pairs) for block in pair.blocks):
        (first, second), (third, fourth) = block.baseline, block.stage
        logs.append(0.5 * math.log(first.per_call * second.per_call / (third.per_call * fourth.per_call)))
    return np.array(logs)


@cache
def interval_rank(count: int) -> int:
    """Return k such that x(k) to x(count − k + 1) holds the median with 95 %; 0 if no such interval exists."""
    ways = accumulate(math.comb(count, heads) for heads in range(count + 1))
    return next(heads for heads, so_far in enumerate(ways) if 40 * so_far >= 2**count)


def median_interval(values: np.ndarray) -> tuple[float, float, float, bool]:
    """Return median, low, high, and whether low to high is a 95 % interval (else the extremes)."""
    ordered = np.sort(values)
    rank = interval_rank(len(ordered))
    low, high = ordered[max(rank, 1) - 1], ordered[len(ordered) - max(rank, 1)]
    return float(np.median(ordered)), float(low), float(high), rank > 0


def ratio_of_logs(
    value: float, low: float, high: float, blocks: int, trials: int = 1, *, bounded: bool = True
) -> Ratio:
    """Build a ratio from logs."""
    doubt: Doubt | None = None if bounded else "few blocks"
    return Ratio(math.exp(value), math.exp(low), math.exp(high), blocks, trials, doubt)


def ratio(pairs: Pair | Sequence[Pair], spread: float = 0.0) -> Ratio:
    """Return the ratio of one pair, or of several trials of the same two stages.

    Several trials give the geometric mean of their medians, and the wider of two intervals: that of all blocks
    together, and Student's over the medians. `spread` is the between-run standard deviation (`between_run_std`): the
    blocks' interval alone covered the truth in 20 of 41 A/A pairs on an H200; widened by the spread estimated from
    every second pair, in 38 of 41. ValueError without blocks.
    """
    trials = [pairs] if isinstance(pairs, Pair) else list(pairs)
    logs = [log_ratios(pair) for pair in trials if pair.blocks]
    if not logs:
        raise ValueError("a ratio needs at least one block")
    value, low, high, bounded = median_interval(np.concatenate(logs))
    if len(logs) > 1:
        centres = np.array([np.median(trial) for trial in logs])
        value = float(centres.mean())
        between = student(len(centres) - 1) * float(centres.std(ddof=1)) / math.sqrt(len(centres))
        if 2 * between > high - low:
            low, high = value - between, value + between
        low, high = min(low, value), max(high, value)
    low, high = _widened(value, low, high, spread / math.sqrt(len(logs)))
    return ratio_of_logs(value, low, high, sum(map(len, logs)), len(logs), bounded=bounded)


def student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t with `freedom` degrees of freedom."""
    from scipy.special import stdtrit  # the same as in scipy.stats, which takes two seconds to import

    return float(stdtrit(freedom, 0.975))


def _widened(value: float, low: float, high: float, spread: float) -> tuple[float, float]:
    """Widen an interval of logs by an independent normal spread: the variances add."""
    more = NORMAL * spread
    return value - math.hypot(value - low, more), value + math.hypot(high - value, more)


def between_run_std(aa_pairs: Sequence[Pair]) -> float:
    """Return the standard deviation of ln ratio between trials: of the A/A pairs' medians, less that within one."""
    intervals = [median_interval(log_ratios(pair)) for pair in aa_pairs if pair.blocks]
    if len(intervals) < MIN_AA_PAIRS:
        return TYPICAL_BETWEEN_RUN_STD
    excess = [value**2 - ((high - low) / (2 * NORMAL)) ** 2 for value, low, high, _ in intervals]
    variance = sum(excess) / len(excess)
    return math.sqrt(max(0.0, variance)) * student(len(intervals)) / NORMAL


def of_builds(*stages: str) -> float:
    """Return half of the 95 % interval of a ratio, as a share, over builds of these stages."""
    spreads = (BETWEEN_BUILDS.get(stage, BETWEEN_BUILDS["compile"]) for stage in stages)
    return math.expm1(NORMAL * math.hypot(*spreads))


def half_width(found: Ratio) -> float:
    """Return half of the interval's width, relative to the value."""
    return 0.5 * (found.high - found.low) / found.value


def inverse(found: Ratio) -> Ratio:
    """Return the ratio of the other stage to this one."""
    return replace(found, value=1 / found.value, low=1 / found.high, high=1 / found.low)


def composed(stage: Pair | Sequence[Pair], other: Pair | Sequence[Pair], spread: float = 0.0, seed: int = 0) -> Ratio:
    """Return the other stage's time over this stage's, both measured against the same baseline.

    The difference of two medians of logs, with a bootstrap interval (BCa: Efron 1987). ValueError without blocks.
    """
    from scipy.stats import bootstrap

    def difference(ours: np.ndarray, theirs: np.ndarray, axis: int) -> np.ndarray:
        return np.asarray(np.median(ours, axis=axis) - np.median(theirs, axis=axis))

    ours, theirs = log_ratios(stage), log_ratios(other)
    if not len(ours) or not len(theirs):
        raise ValueError("a ratio needs at least one block")
    value = low = high = float(np.median(ours) - np.median(theirs))
    bounded = min(len(ours), len(theirs)) >= 6
    if bounded and (np.ptp(ours) > 0 or np.ptp(theirs) > 0):
        interval = bootstrap(
            (ours, theirs), difference, n_resamples=RESAMPLES, method="BCa", rng=np.random.default_rng(seed)
        ).confidence_interval
        low, high = float(interval.low), float(interval.high)
    elif not bounded:
        low, high = float(ours.min() - theirs.max()), float(ours.max() - theirs.min())
    low, high = _widened(value, low, high, spread)
    return ratio_of_logs(value, low, high, min(len(ours), len(theirs)), bounded=bounded)


def samples_of(pairs: Pair | Sequence[Pair], side: Side) -> list[Sample]:
    """Return all samples of one side, in the order they were taken."""
    trials = [pairs] if isinstance(pairs, Pair) else pairs
    return [sample for pair in trials for block in pair.blocks for sample in getattr(block, side)]


def seconds_per_call(pairs: Pair | Sequence[Pair], side: Side = "stage") -> Estimate:
    """Return the median seconds per call over the samples of one side; ValueError without blocks."""
    seconds = np.array([sample.per_call for sample in samples_of(pairs, side)])
    if not len(seconds):
        raise ValueError("a time needs at least one block")
    return Estimate(*median_interval(seconds)[:3])


def latency(latencies: Sequence[float]) -> Latency:
    """Return the percentiles of single calls' latencies, in seconds; ValueError without any."""
    from scipy.special import bdtr

    if not latencies:
        raise ValueError("a latency needs at least one call")
    calls = len(latencies)
    p50, p90, p99 = (float(value) for value in np.percentile(np.asarray(latencies), [50, 90, 99]))
    ordered, limits = sorted(latencies), []
    for share, least in BOUND_CALLS.items():  # 95 % upper limits of quantiles, by order statistics
        rank = int(np.searchsorted(bdtr(np.arange(calls), calls, share), 0.95))
        limits.append(ordered[min(rank, calls - 1)] if calls >= least else None)
    return Latency(p50, p90, p99 if calls >= P99_CALLS else None, ordered[-1], calls, *limits)


def drift(first: Sequence[Sample], last: Sequence[Sample]) -> float:
    """Return how much slower the last samples are than the first: the ratio of the medians, minus 1."""
    return median(sample.per_call for sample in last) / median(sample.per_call for sample in first) - 1


def drifts_of(pairs: Sequence[Pair]) -> list[float]:
    """Return the baseline's drift from the first to the last quarter of each pair that is long enough to show one."""
    drifts = []
    for pair in pairs:
        if len(pair.blocks) >= 1 / END_SHARE:
            samples = samples_of(pair, "baseline")
            end = max(1, int(END_SHARE * len(samples)))
            drifts.append(drift(samples[:end], samples[-end:]))
    return drifts


def is_unfair(change: float | None) -> bool:
    """Return whether the baseline drifted so far that times taken at different moments mislead."""
    return change is not None and abs(change) >= DRIFT_UNFAIR


def log_of_unfair(change: float | None) -> float:
    """Return a drift as a difference of logs where it is unfair, else 0."""
    return abs(math.log1p(change)) if change is not None and is_unfair(change) else 0.0


def unfair_drift(pairs: Sequence[Pair]) -> float:
    """Return the largest unfair drift within the pairs, as a difference of logs; 0 if there is none.

    It moves the log ratio of a block by at most as much, whatever the order; a steady drift cancels out.
    """
    return max(map(log_of_unfair, drifts_of(pairs)), default=0.0)


def taken_by_others(pairs: Sequence[Pair]) -> float:
    """Return the largest share of processors that other programs took during a pair; 0 below `CROWDED`."""
    shares = [pair.taken_share for pair in pairs if pair.blocks and pair.taken_share is not None]
    return max((share for share in shares if share >= CROWDED), default=0.0)


def steady_ratio(pairs: Sequence[Pair], spread: float = 0.0) -> Ratio:
    """Return the ratio of trials as `ratio` does, allowing for unfair drift and for a busy machine."""
    return allowing(ratio(pairs, spread), unfair_drift(pairs), taken_by_others(pairs))


def steady_composed(stage: Sequence[Pair], other: Sequence[Pair], spread: float = 0.0) -> Ratio:
    """Return the composed ratio, allowing for what happened to the pairs of either side."""
    taken = max(taken_by_others(stage), taken_by_others(other))
    return allowing(composed(stage, other, spread), unfair_drift(stage) + unfair_drift(other), taken)


def allowing(found: Ratio, drift: float, taken: float = 0.0) -> Ratio:
    """Move both ends of the interval apart by `drift`; a share `taken` by other programs leaves no interval."""
    wider = replace(found, low=found.low / math.exp(drift), high=found.high * math.exp(drift))
    if taken and found.bounded:
        return replace(wider, doubt="busy machine", amount=taken)
    return replace(wider, doubt="baseline drifted", amount=drift) if drift and found.bounded else wider
