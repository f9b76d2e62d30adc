"""The outcome of a ratio: one rule for run reports, comparisons of runs, lessons and CSV.

A difference is claimed where the interval excludes 1, the difference is at least the minimum detectable one, and larger
than what the baseline shows against itself; and where the interval says more of the factor than that it isn't 1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from pipeline.records.samples import Pair
from pipeline.stats.intervals import ITSELF, TYPICAL_BETWEEN_RUN_STD, Doubt, Ratio, half_width, log_ratios

Outcome = Literal["faster", "slower", "same", "not resolved"]
Cause = Literal[Doubt, "baseline not itself", "below the effect", "wide interval"]

SAME = 0.01  # within which two stages count as the same
LEAST_EFFECT = 0.01  # no smaller difference is claimed, however quiet the machine
EFFECT_FACTOR = 2.57  # Student's t at 97.5 % with five degrees of freedom: five A/A pairs around a known 1
VAGUE = 2.0  # upper end of an interval over its lower end, from which the lower must be as far from 1 as from the upper


@dataclass(frozen=True)
class Unresolved:
    """Why a ratio is not resolved, and the figures that say what would resolve it."""

    cause: Cause
    blocks: int
    difference: float  # of the ratio from 1
    effect: float  # the minimum detectable one
    half_width: float  # of the interval, relative to the value
    needed_blocks: int  # for an interval of ± SAME / 2
    drift: float = 0.0  # of the baseline, as a share, that widened the interval
    itself: tuple[float, float] = (1.0, 1.0)  # the interval of the baseline against itself
    taken: float = 0.0  # share of the run's processors that other programs took


@dataclass(frozen=True)
class Noise:
    """The differences that a machine shows between equals."""

    effect: float = LEAST_EFFECT  # the minimum detectable one, as a share, by the control pairs' medians
    # the baseline's ratio to itself as a stage of its own; 1 without an interval where it was none
    itself: Ratio = ITSELF
    spread: float = TYPICAL_BETWEEN_RUN_STD  # the between-run standard deviation of ln ratio

    @property
    def reach(self) -> float:
        """Distance of the baseline from itself, either way, as a difference of logs; 0 where too few blocks say."""
        if self.itself.doubt == "few blocks":
            return 0.0
        return max(math.log(self.itself.high), -math.log(self.itself.low), 0.0)

    @property
    def least(self) -> float:
        """The smallest difference that may be claimed, as a share."""
        return max(self.effect, math.expm1(self.reach))

    def outcome(self, found: Ratio) -> Outcome:
        """Return what the ratio shows; "same": the interval lies within 1 % of 1.

        Faster or slower: the interval excludes 1 and is not vague, and the value is beyond the noise.
        """
        if not found.bounded or vague(found):
            return "not resolved"
        if (found.low > 1 or found.high < 1) and self.exceeded_by(found.value):
            return "faster" if found.value > 1 else "slower"
        same = max(found.high, 1 / found.low) <= 1 + SAME
        return "same" if same else "not resolved"

    def exceeded_by(self, factor: float) -> bool:
        """Return whether two that differ by this factor differ by more than the noise."""
        away = max(factor, 1 / factor)
        return away >= 1 + self.effect and math.log(away) > self.reach

    def apart(self, fast: Ratio, slow: Ratio) -> bool:
        """Return whether the first is shown to be the faster: disjoint ranges, and values beyond the noise."""
        return range_of(fast)[0] > range_of(slow)[1] and self.exceeded_by(fast.value / slow.value)

    def unresolved(self, found: Ratio) -> Unresolved:
        """Explain why a ratio is not resolved; an interval shrinks with the square root of the number of blocks."""
        width, cause = half_width(found), cast("Cause | None", found.doubt)
        if cause not in ("busy machine", "few blocks"):
            below = max(found.value, 1 / found.value) < 1 + self.effect
            unclear = vague(found) or found.low <= 1 <= found.high or self.exceeded_by(found.value)
            otherwise: Cause = "below the effect" if below else "baseline not itself"
            cause = (cause or "wide interval") if unclear else otherwise
        return Unresolved(
            cause, found.blocks, abs(found.value - 1), self.effect, width,
            needed_blocks=round(found.blocks * (width / (0.5 * SAME)) ** 2),
            drift=math.expm1(found.drift),
            itself=(self.itself.low, self.itself.high),
            taken=found.taken,
        )  # fmt: skip


def range_of(found: Ratio) -> tuple[float, float]:
    """Return where the ratio lies: in its interval, widened by what other programs took; with few blocks anywhere."""
    if found.doubt == "few blocks" or found.taken >= 1:
        return 0.0, math.inf
    return found.low * (1 - found.taken), found.high / (1 - found.taken)


def vague(found: Ratio) -> bool:
    """Return whether an interval is wide, and as wide as it is far from 1: 1.4 to 7.7 is vague, 3.4 to 10 is not."""
    wide = found.high / found.low
    return wide > VAGUE and wide > max(found.low, 1 / found.high)


def minimum_detectable_effect(aa_pairs: Sequence[Pair]) -> float:
    """Return the smallest relative difference that a run may claim: max(1 %, 2.57 × rms of ln A/A)."""
    centres = [float(np.median(log_ratios(pair))) for pair in aa_pairs if pair.blocks]
    mean_square = sum(centre**2 for centre in centres) / max(len(centres), 1)
    return max(LEAST_EFFECT, EFFECT_FACTOR * math.sqrt(mean_square))


def of_both(one: Noise, other: Noise) -> Noise:
    """Return the noise of a ratio composed of two independently measured ones; the baselines' distances add up."""
    reach = one.reach + other.reach
    own = Ratio(1.0, math.exp(-reach), math.exp(reach), max(one.itself.blocks, other.itself.blocks))
    spread = math.sqrt(2) * max(one.spread, other.spread)
    return Noise(max(one.effect, other.effect), own if reach else ITSELF, spread)
