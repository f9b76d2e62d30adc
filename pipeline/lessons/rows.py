"""Figures of a lesson's samples: medians, ratios of interleaved rows, and sentences of both."""

from collections.abc import Iterator
from statistics import median
from typing import Literal

import numpy as np

from pipeline.lessons.lesson_records import Row
from pipeline.report import formatting
from pipeline.stats import intervals
from pipeline.stats.intervals import END_SHARE, Estimate, Ratio, allowing, interval_rank, median_interval, ratio_of_logs
from pipeline.stats.outcomes import Noise, Outcome

Unit = Literal["time", "TFLOP/s", "GB/s", "memory"]
LEAST_BLOCKS = 3  # of which a median leaves one out that is odd


def measured(row: Row) -> bool:
    """Return whether it has samples."""
    return bool(row.samples or row.held_bytes)


def seconds(row: Row) -> Estimate:
    """Return the median seconds of the work, with its interval; where a call repeats the work, of one repeat."""
    return Estimate(*median_interval(np.array([part.per_call / row.repeats for part in row.samples]))[:3])


def has_interval(row: Row) -> bool:
    """Return whether its samples are enough for one: six."""
    return interval_rank(len(row.held_bytes or row.samples)) > 0


def drift_of(row: Row) -> float:
    """Return how much slower the row was in its last quarter of blocks than in its first, as a share, by medians.

    Two rounds are a block, one forward and one backward: a row that differs from itself by turns hasn't drifted.
    """
    taken = [part.per_call for part in row.samples]
    blocks = [one + other for one, other in zip(taken[::2], taken[1::2], strict=False)]  # an odd last round has none
    end = min(max(LEAST_BLOCKS, int(END_SHARE * len(blocks))), len(blocks) // 2)
    return median(blocks[-end:]) / median(blocks[:end]) - 1 if end else 0.0


def value(row: Row, unit: Unit) -> Estimate | None:
    """Return the row's figure in seconds, 10^12 FLOP/s, 10^9 bytes/s or bytes; None where it has none in that unit."""
    if unit == "memory":
        return Estimate(*median_interval(np.array(row.held_bytes))[:3]) if row.held_bytes else None
    if not row.samples:
        return None
    found = seconds(row)
    work = {"TFLOP/s": row.flops, "GB/s": row.moved_bytes}.get(unit)
    if unit == "time":
        return found
    if work is None:
        return None
    amount = work / row.repeats / (1e12 if unit == "TFLOP/s" else 1e9)
    return Estimate(amount / found.value, amount / found.high, amount / found.low)


def shown(found: float, unit: Unit) -> str:
    """Return a figure with its unit."""
    if unit == "time":
        return formatting.seconds(found)
    return formatting.size(found) if unit == "memory" else f"{formatting.significant(found)} {unit}"


class Rows(list[Row]):
    """The rows of a lesson, by name."""

    def measured(self) -> Iterator[Row]:
        """Return those that have samples."""
        return filter(measured, self)

    def row(self, name: str) -> Row | None:
        """Return the measured row of that name; None where there is none."""
        return next((row for row in self.measured() if row.name == name), None)

    def times(self, slow: str, fast: str) -> Ratio | None:
        """Return the first row's time over the second's, paired round by round; above 1, the second is faster.

        The larger drift of the two, if it is unfair, widens the interval.
        """
        first, second = self.row(slow), self.row(fast)
        if first is None or second is None or not first.samples or not second.samples:
            return None
        own, other = (np.array([part.per_call / row.repeats for part in row.samples]) for row in (first, second))
        rounds = min(len(own), len(other))
        middle, low, high, bounded = median_interval(np.log(own[:rounds] / other[:rounds]))
        found = ratio_of_logs(middle, low, high, rounds, bounded=bounded)
        return allowing(found, max(intervals.log_of_unfair(drift_of(row)) for row in (first, second)))

    def outcome(self, slow: str, fast: str) -> Outcome | None:
        """Return the second row's outcome beside the first, such as "faster"; None without either."""
        found = self.times(slow, fast)
        return Noise().outcome(found) if found else None

    def pace(self, name: str, other: str) -> str:
        """Return how fast the first row is beside the second, as in "3.6 × as fast as"; empty where either is missing.

        No stronger than the interval, which the table shows.
        """
        ratio = self.times(other, name)
        if ratio is None:
            return ""
        outcome = Noise().outcome(ratio)
        if outcome == "same":
            return "just as fast as"
        if outcome == "not resolved":
            return "not shown to be faster or slower than"
        factor, way = (ratio.value, "fast") if outcome == "faster" else (1 / ratio.value, "slow")
        return f"{formatting.significant(factor)} × as {way} as"

    def paces(self) -> str:
        """Return how fast each row is beside the one that it is compared with, in a sentence; empty without any."""
        pairs = [(row.name, row.against) for row in self.measured() if row.against]
        told = [f"{name} is {pace} {other}" for name, other in pairs if (pace := self.pace(name, other))]
        return f"{'; '.join(told)}." if told else ""


def kernels_in(work: str, rows: Rows) -> list[str]:
    """Return the paces, and the kernels of each way in a "call" or a "step" if two were counted."""
    counts = [f"{row.name} {row.kernels:,.0f}" for row in rows.measured() if row.kernels is not None]
    return [rows.paces(), *([f"Kernels a {work}: {', '.join(counts)}."] if len(counts) > 1 else [])]


def amount(ratio: Ratio) -> str:
    """Return a ratio with its interval, such as 2.31 × [2.30, 2.33]."""
    return f"{formatting.times(ratio)} {formatting.interval(ratio)}".strip()
