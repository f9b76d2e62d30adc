"""The winner by the objective that was asked for, among the stages that keep the constraints; from a record alone.

Throughput and cost are ranked by the ratios' intervals: a cost is a price times the same seconds. A median of
single calls, the memory and the energy have no interval: the best figure wins, and stages within the smallest
difference that may be claimed of it are its ties; of bytes, which the machine's pace doesn't change, within 1 %.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline.analysis.stage_summary import StageSummary
from pipeline.records.goals import Constraint, FigureName, Goal, Objective
from pipeline.records.run_record import RunRecord
from pipeline.stats.intervals import BOUND_CALLS, Doubt
from pipeline.stats.outcomes import LEAST_EFFECT
from pipeline.stats.ranking import Ranking, ranking

MILLION = 1e6
TAILS: dict[FigureName, float] = {"p90": 0.90, "p99": 0.99, "host_p99": 0.99}  # bounded by their upper limit
BY_SPEED: frozenset[Objective] = frozenset({"throughput", "cost"})
MOVED: tuple[Doubt, ...] = ("busy machine", "baseline drifted")  # what moves single calls as it moves samples
FIGURE_OF: dict[Objective, FigureName] = {
    "throughput": "throughput", "latency": "p50", "memory": "memory", "energy": "energy", "cost": "cost",
}  # fmt: skip


@dataclass(frozen=True)
class Check:
    """A bound beside a stage's figure."""

    constraint: Constraint
    value: float | None  # None: it was not measured

    @property
    def holds(self) -> bool:
        """True if the figure is known and keeps the bound."""
        return self.value is not None and self.constraint.admits(self.value)

    @property
    def excess(self) -> float:
        """Factor by which the figure is beyond the bound: 1 just keeps it, infinite is unknown."""
        if self.value is None:
            return math.inf
        limit = self.constraint.limit
        return self.value / limit if self.constraint.sign.startswith("<") else limit / max(self.value, math.ulp(0.0))


@dataclass(frozen=True)
class Choice:
    """The choice of the winner."""

    goal: Goal  # what was asked
    checks: dict[str, list[Check]]  # every bound, for each ranked stage
    # the figure that the objective is about, of the same; None where it was not measured
    values: dict[str, float | None]
    held: list[str]  # the ranked stages that keep every bound, and whose figure is known
    # the ranked stage whose worst figure is least beyond its bound; None where one keeps all, or no figure of any
    # stage is known
    nearest: str | None

    @property
    def by_speed(self) -> bool:
        """True if intervals of the throughput tell the winner."""
        return self.goal.objective in BY_SPEED

    def missed(self, stage: str) -> list[Check]:
        """Return the bounds that a ranked stage doesn't keep, unknown figures included."""
        return [check for check in self.checks.get(stage, []) if not check.holds]


def choice_of(run: RunRecord, stages: list[StageSummary]) -> Choice | None:
    """Choose among the ranked stages; None where nothing but speed was asked for."""
    goal = run.config.goal
    if goal == Goal():
        return None
    ranked = [stage for stage in stages if stage.ranked]
    checks = {
        stage.name: [Check(each, READERS[each.figure](run, stage)) for each in goal.subject_to] for stage in ranked
    }
    values = {stage.name: READERS[FIGURE_OF[goal.objective]](run, stage) for stage in ranked}
    held = [name for name, own in checks.items() if values[name] is not None and all(check.holds for check in own)]
    worst = {name: max((check.excess for check in own), default=0.0) for name, own in checks.items()}
    nearest = min(worst, key=lambda name: worst[name], default=None)
    lost = held or nearest is None or not 1 <= worst[nearest] < math.inf
    return Choice(goal, checks, values, held, None if lost else nearest)


def order_under(run: RunRecord, order: Ranking, choice: Choice | None) -> Ranking:
    """Return the ranking with the choice's winner and ties; the order and the outcomes stay those of speed."""
    if choice is None:
        return order
    if choice.by_speed:
        found = ranking(run, choice.held) if choice.goal.subject_to else order
        return replace(order, winner=found.winner, ties=found.ties, unresolved=found.unresolved)
    known = {name: value for name in choice.held if (value := choice.values[name]) is not None}
    if not known:
        return replace(order, winner=None, ties=[], unresolved=None)
    winner = min(known, key=lambda name: (known[name], order.order.index(name)))
    if choice.goal.objective == "latency" and order.ratios[winner].doubt in MOVED:
        return replace(order, winner=None, ties=[], unresolved=order.noise.unresolved(order.ratios[winner]))
    most = known[winner] * (1 + equal_within(choice.goal, order))
    ties = [name for name, value in known.items() if name != winner and value <= most]
    return replace(order, winner=winner, ties=ties, unresolved=None)


def equal_within(goal: Goal, order: Ranking) -> float:
    """Return the share by which a figure of one reading must be better; bytes do not depend on the machine's pace."""
    return LEAST_EFFECT if goal.objective == "memory" else order.noise.least


def needed_calls(goal: Goal) -> int:
    """Return the single calls from which every bounded tail has an upper limit; 0 where none is bounded."""
    return max((BOUND_CALLS[TAILS[each.figure]] for each in goal.subject_to if each.figure in TAILS), default=0)


def _cost(run: RunRecord, stage: StageSummary) -> float | None:
    """Return the cost of a million images at steady state."""
    price = run.config.report.gpu_hour_price
    return price * MILLION / stage.images_per_second / 3600 if price is not None and stage.images_per_second else None


# In SI units, a rate in images a second, a cost in the user's currency; None if not measured.
READERS: dict[FigureName, Callable[[RunRecord, StageSummary], float | None]] = {
    "throughput": lambda _, stage: stage.images_per_second,
    "time": lambda _, stage: stage.pace,
    "p50": lambda _, stage: stage.latency.p50 if stage.latency else None,
    "p90": lambda _, stage: stage.latency.p90_limit if stage.latency else None,
    "p99": lambda _, stage: stage.latency.p99_limit if stage.latency else None,
    "host_p50": lambda _, stage: stage.host_latency.p50 if stage.host_latency else None,
    "host_p99": lambda _, stage: stage.host_latency.p99_limit if stage.host_latency else None,
    "memory": lambda _, stage: stage.peak_bytes,
    "energy": lambda _, stage: stage.joules_per_image,
    "cost": _cost,
    "setup": lambda _, stage: stage.setup_seconds,
}
