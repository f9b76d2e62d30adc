"""Whether a stage is as fast as its samples say, by the run's own clock, on pictures that the run draws.

A stage shares its process with the clock that times it there and with all that checks it: whoever seeks them out can
change what they say. It can't know the pictures of an audit, whose answers the baseline's worker computes as well, nor
the clock of this process, which runs from the question to the last answer. One honest round in eight is enough, as no
round can be answered faster than the stage computes.

Where the machine is given to others, nobody is as fast as its samples say. A stage that can't be told from one that
lies about its time is then refused as not resolved, and accused of nothing.
"""

import math
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol

from pipeline.devices.host import load_per_processor
from pipeline.protocol import Audit
from pipeline.records.run_record import FailureKind, Status
from pipeline.records.samples import Pair
from pipeline.stats.intervals import Side, seconds_per_call

ROUND_SECONDS = 0.25  # of the baseline's calls
FEWEST_CALLS, MOST_CALLS = 2, 64
ROUNDS, ROUNDS_APART = 8, 3  # the latter where the baseline answers only once the stage is gone
SLACK = 1.3  # times what the samples say, as single rounds scatter
BLANKS = 3  # times what a round without calls takes
MOST_LAG = 2.0  # times: how much slower than in its samples the baseline may be, for the stage to be, too
SHORTEST = 2e-3  # seconds that say nothing
OVERLOAD = 4.0  # programs that compute, or wait to, for each processor: the system's average over a minute
ALLOWED_TIMES, LEAST_ALLOWED, MOST_ALLOWED = 6, 0.02, 0.7  # of both tolerances; relative L2


@dataclass(frozen=True)
class Audited:
    """What came of a round."""

    answers: list[list[float]]  # some logits of each call
    seconds: float  # from the question to the answers, by this process's clock


class Audible(Protocol):
    """A worker that answers an audit."""

    def audit(self, asked: Audit) -> Audited:
        """The logits of each call, and the seconds of all by this process's clock."""


NOT_RESOLVED: FailureKind = "error"


class Doubt(NamedTuple):
    """Why a stage isn't what its samples say, or nobody can tell whether it is, for its record."""

    failure: FailureKind
    reason: str

    @property
    def fields(self) -> dict[str, Any]:
        """Of the StageRecord."""
        return {"status": self.status, "failure": self.failure, "reason": self.reason}

    @property
    def status(self) -> Status:
        """What it makes of the stage: without a time that is known it has failed, and `resume` measures it again."""
        return "failed" if self.failure == NOT_RESOLVED else "inaccurate"


@dataclass(frozen=True)
class Claim:
    """What the samples say.

    Attributes:
        baseline: seconds of a call.
        stage: likewise.
        allowed: how far answers may be from the baseline's, relative L2.
    """

    baseline: float
    stage: float
    allowed: float

    def seen_from_the_other_side(self) -> "Claim":
        """What they say of the baseline beside the stage."""
        return Claim(self.stage, self.baseline, self.allowed)


def claim_of(pairs: Sequence[Pair], tolerances: Iterable[float]) -> Claim:
    """What the pairs' samples say, of a stage and a baseline with these tolerances, relative L2."""
    sides: tuple[Side, ...] = ("baseline", "stage")
    baseline, stage = (seconds_per_call(pairs, side).value for side in sides)
    return Claim(baseline, stage, allowed_distance(tolerances))


def allowed_distance(tolerances: Iterable[float]) -> float:
    """How far answers to mixed pictures may lie apart, of a stage and a baseline with these tolerances, relative L2."""
    return min(MOST_ALLOWED, max(LEAST_ALLOWED, ALLOWED_TIMES * sum(tolerances)))


def questions(baseline_call: float, rounds: int = ROUNDS) -> Iterator[Audit]:
    """The rounds: each of as many calls as the baseline makes in a quarter of a second, from a seed of chance."""
    calls = min(MOST_CALLS, max(FEWEST_CALLS, math.ceil(ROUND_SECONDS / max(baseline_call, 1e-9))))
    for _ in range(rounds):
        yield Audit(secrets.randbits(32), calls)


def audited(baseline: Audible, stage: Audible, claim: Claim) -> Doubt | None:
    """Ask round after round, until one agrees with the samples; what stands against the stage where none does.

    Where the machine was too busy in half of the rounds, that is that its time can't be told.
    """
    return audited_apart(((asked, stage.audit(asked)) for asked in questions(claim.baseline)), baseline, claim)


def audited_apart(given: Iterable[tuple[Audit, Audited]], baseline: Audible, claim: Claim) -> Doubt | None:
    """As `audited`, of rounds that the stage has answered already, or answers as they are drawn from `given`."""
    doubts: list[Doubt] = []
    for asked, answered in given:
        if (doubt := doubt_in(asked, answered, baseline, claim)) is None:
            return None
        doubts.append(doubt)
    under_load = [doubt for doubt in doubts if doubt.failure == NOT_RESOLVED]
    others = [doubt for doubt in doubts if doubt not in under_load]
    wrong = any(doubt.failure == "wrong answer" for doubt in others)  # which no load makes
    told = under_load if 2 * len(under_load) >= len(doubts) and not wrong else others
    return told[-1] if told else None


def doubt_in(asked: Audit, given: Audited, baseline: Audible, claim: Claim) -> Doubt | None:
    """What stands against the stage in one round, whose answers and time are compared with the baseline's."""
    blank, right = baseline.audit(asked.without_calls()), baseline.audit(asked)
    if (off := distance(given.answers, right.answers)) > claim.allowed:
        return Doubt("wrong answer", f"its answers to pictures that the run drew are {off:.2g} (relative L2) off")
    behind, load = (right.seconds - blank.seconds) / (asked.calls * claim.baseline), load_per_processor()
    lag = min(MOST_LAG, max(1.0, behind))
    said = asked.calls * claim.stage
    if given.seconds <= SLACK * lag * said + BLANKS * blank.seconds + SHORTEST:
        return None
    figures = f"{asked.calls} calls took {given.seconds:.3g} s, and by its samples they take {said:.3g} s"
    if behind <= MOST_LAG and load <= OVERLOAD:
        return Doubt("impossible", f"by the run's own clock {figures}")
    others = f"the baseline took {behind:.3g} times what its samples say, at a load of {load:.3g} for each processor"
    remedy = "leave the machine to the run, and go on with resume=RUN"
    return Doubt(NOT_RESOLVED, f"not resolved, as measured under load: {figures}, but {others}; {remedy}")


def distance(got: list[list[float]], want: list[list[float]]) -> float:
    """Relative L2; infinite where the numbers are not as many, or one is no number."""
    if [*map(len, got)] != [*map(len, want)]:
        return math.inf
    pairs = list(zip(chain(*got), chain(*want), strict=True))
    off = math.sqrt(sum((one - other) ** 2 for one, other in pairs) / max(sum(other**2 for _, other in pairs), 1e-30))
    return off if math.isfinite(off) else math.inf
