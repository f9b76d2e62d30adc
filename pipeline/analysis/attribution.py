"""The time that each rung took away: neighbours on the way to the winner compared by class of work."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pipeline.analysis.bottleneck import MATRIX_WORK, SEEN_SHARE, idle_share, profiled_share
from pipeline.analysis.roofline import seconds_above_by_level, seconds_below
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.records.diagnostics import KernelClass, Profile

LEAST_SHARE = 0.05  # of the change, or of the later stage's time: a class that changed by so much is named
NEXT_TO_NOTHING = 0.01  # of a stage's time: what a profile shows of a runtime that hides its work
MOST_LEFT = 0.75  # of a change, that what is named may leave over and still explain it
IDLE_CHANGE = 0.1  # of the profiled time, by which the idle share must move to be named

Finding = Literal["attributed", "unexplained", "no difference", "no profile", "hidden"]


@dataclass(frozen=True)
class ClassChange:
    """The change of one class of work from a rung to the next, per call."""

    kind: KernelClass
    seconds: float
    launches_before: float
    launches_after: float


@dataclass(frozen=True)
class Step:
    """One rung on the way from the baseline to the winner, in seconds per call."""

    previous: str  # the rung before it
    name: str  # the rung
    before: float  # seconds per call of the rung before it
    after: float  # its own
    # whether the change is attributed to classes of work, and if not, why. "unexplained" where the named ones
    # together have the other sign, or leave most of the change over, and no idle time went either
    finding: Finding
    unseen: str = ""  # the rung that the finding is about: the one without a profile, or whose profile sees too little
    seen_share: float | None = None  # of that rung's time, what its profile sees
    classes: tuple[ClassChange, ...] = ()  # those that changed by enough to be named, the largest change first
    # the share of the profiled time without any kernel, of the rung before it and of its own, each from its profile
    # alone; None where the two are close, or no GPU is there to idle
    idle: tuple[float, float] | None = None
    rest: float = 0.0  # of the change, what the classes don't explain

    @property
    def change(self) -> float:
        """Seconds per call, below 0 where the rung is faster."""
        return self.after - self.before


@dataclass(frozen=True)
class Remaining:
    """Where the winner's time could still be reduced: by level of the network, else by class of work."""

    place: str  # a level, or a class
    seconds: float  # above the level's roofline; of the class, all
    total: float = 0.0  # above the roofline over all levels; 0 where the place is a class
    below: float = 0.0  # by which other layers are faster than their rooflines
    between: float = 0.0  # in what lies between layers, which has no roofline


def way(summary: RunSummary) -> tuple[list[StageSummary], list[str]]:
    """Return the rungs from the first ranked one to the winner, and the names of those left out between them.

    Left out: a rung that is not faster than the best before it by the minimum detectable effect, or not resolved.
    """
    each = summary.image_seconds
    names = [stage.name for stage in summary.ranked]
    if summary.ranking.winner not in names:
        return [], []
    *before, winner = summary.ranked[: names.index(summary.ranking.winner) + 1]
    kept: list[StageSummary] = []
    for stage in before:
        if stage.compared.outcome == "not resolved" and stage.name != summary.run.baseline:
            continue
        if not kept or each[stage.name] * (1 + summary.ranking.noise.least) <= each[kept[-1].name]:
            kept.append(stage)
    return [*kept, winner], [stage.name for stage in before if stage not in kept]


def steps(summary: RunSummary) -> list[Step]:
    """Compare each rung on the way to the winner with the one before it; none where the baseline drifted."""
    if summary.doubt == "baseline drifted":
        return []
    return [_step(summary, before, after) for before, after in pairwise(way(summary)[0])]


def _step(summary: RunSummary, before: StageSummary, after: StageSummary) -> Step:
    """Compare two rungs; that one differs from the baseline its own interleaved samples say before any effect."""
    old, new = (summary.image_seconds[stage.name] * summary.run.batch_size for stage in (before, after))
    told = before.name == summary.baseline and after.compared.outcome in ("faster", "slower")
    tied = {before.name, after.name} <= {summary.ranking.winner, *summary.ranking.ties}
    if tied or (abs(new - old) < summary.ranking.noise.least * old and not told):
        return Step(before.name, after.name, old, new, "no difference")
    for stage in (before, after):
        seen = told_share(stage)
        if seen is None or hides(stage):
            finding: Finding = "no profile" if seen is None else "hidden"
            return Step(before.name, after.name, old, new, finding, stage.name, seen)
    first, second, change = before.stage.profile, after.stage.profile, new - old
    assert first is not None
    assert second is not None
    spent, spends = by_class(first), by_class(second)
    launched, launches = (by_class(each, "launches_per_call") for each in (first, second))
    moved_by = {kind: spends.get(kind, 0.0) - spent.get(kind, 0.0) for kind in {*spent, *spends}}
    classes = tuple(
        ClassChange(kind, moved_by[kind], launched.get(kind, 0.0), launches.get(kind, 0.0))
        for kind in sorted(moved_by, key=lambda kind: (-abs(moved_by[kind]), kind))
        if abs(moved_by[kind]) >= LEAST_SHARE * min(abs(change), new)
    )
    idled, idles = before.bottleneck.evidence.idle_told, after.bottleneck.evidence.idle_told
    idle = None if idled is None or idles is None or abs(idles - idled) < IDLE_CHANGE else (idled, idles)
    named = sum(each.seconds for each in classes)
    explained = named * change > 0 and abs(change - named) <= MOST_LEFT * abs(change)
    less_idle = idle is not None and (idle[1] < idle[0]) == (change < 0)
    finding = "attributed" if less_idle or explained else "unexplained"
    return Step(before.name, after.name, old, new, finding, classes=classes, idle=idle, rest=change - named)


def largest_step(summary: RunSummary) -> Step | None:
    """Return the rung that took the most time away, from the baseline on; None where none is shown to."""
    names = [stage.name for stage in summary.stages]
    first = names.index(summary.baseline) if summary.baseline in names else 0
    told = [step for step in steps(summary) if step.finding != "no difference"]
    counted = [step for step in told if names.index(step.previous) >= first]
    largest = min(counted, key=lambda step: step.change, default=None)
    return largest if largest and largest.change < 0 else None


def remaining(winner: StageSummary) -> Remaining | None:
    """Return the level with the most time above its roofline; the longest class of work where layers are unknown."""
    above = seconds_above_by_level(winner.layers)
    level = next(iter(above), "")
    if level and above[level] > 0:
        between = sum(layer.seconds for layer in winner.layers if not layer.has_work)
        return Remaining(level, above[level], sum(above.values()), seconds_below(winner.layers), between)
    profile = winner.stage.profile
    if profile is None or not profile.kernels or hides(winner):
        return None
    every = by_class(profile)
    rest = [(seconds, kind) for kind, seconds in every.items() if kind not in MATRIX_WORK]
    whole = max(sum(every.values()), winner.seconds.value if winner.seconds else 0.0)
    longest, kind = max(rest, default=(0.0, "other"))
    return Remaining(kind, longest) if rest and longest >= LEAST_SHARE * whole else None


def seen_share(stage: StageSummary) -> float | None:
    """Return how much of a stage's time its kernels or operators in the profile add up to; None at another pace."""
    if stage.seconds is None or stage.bottleneck.reason == "other pace":
        return None
    return profiled_share(stage.stage, stage.seconds.value)


def told_share(stage: StageSummary) -> float | None:
    """Return the same, on a CPU without what has no class, which may be all of a program under one name."""
    if stage.seconds is None or stage.stage.profile is None:
        return None
    share = profiled_share(stage.stage, stage.seconds.value, named=not stage.bottleneck.on_gpu)
    return share if stage.bottleneck.on_gpu else share or 0.0


def hides(stage: StageSummary) -> bool:
    """Return whether most of a stage's time goes where its profile names no work, though the GPU doesn't idle there."""
    told, idle = told_share(stage), idle_share(stage.stage)
    idles = idle is not None and idle > 1 - SEEN_SHARE
    return told is not None and told < SEEN_SHARE and not idles


def by_class(profile: Profile, what: str = "seconds_per_call") -> dict[KernelClass, float]:
    """Return seconds, or "launches_per_call", of every class of work."""
    total: dict[KernelClass, float] = defaultdict(float)
    for row in profile.kernels:
        total[row.kind] += getattr(row, what)
    return dict(total)
