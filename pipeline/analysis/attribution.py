"""What each rung took away: neighbours on the way to the winner compared by class of work."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pipeline.analysis.layer_figures import seconds_above_by_level
from pipeline.analysis.summary import RunSummary, StageSummary
from pipeline.analysis.traffic import BY_COUNTERS, moved
from pipeline.records.diagnostics import KernelClass, Profile
from pipeline.stats.ranking import seconds_per_image

LEAST_SHARE = 0.05  # of a change, that a class must hold to be named
MOST_CLASSES = 3
SEEN_SHARE = 0.5  # of a stage's time that its profile must account for; below it the classes say little
MATRIX_WORK = ("convolution", "matmul")

Finding = Literal["attributed", "no difference", "no profile", "hidden"]


@dataclass(frozen=True)
class ClassChange:
    """How one class of work changed from a rung to the next, per call."""

    kind: KernelClass
    seconds: float
    launches_before: float
    launches_after: float


@dataclass(frozen=True)
class Step:
    """One rung on the way from the baseline to the winner, in seconds per call.

    Attributes:
        previous: the rung before it.
        name: the rung.
        before: seconds per call of the rung before it.
        after: its own.
        finding: whether the change is attributed to classes of work, and if not, why.
        unseen: the rung that the finding is about: the one without a profile, or whose profile sees too little.
        seen_share: of that rung's time, what its profile sees.
        classes: those that changed most, the largest change first.
        idle: the change of the time in which no kernel runs; None where it is little, or no GPU is there to idle.
        rest: what neither the classes nor the idle time explain.
    """

    previous: str
    name: str
    before: float
    after: float
    finding: Finding
    unseen: str = ""
    seen_share: float | None = None
    classes: tuple[ClassChange, ...] = ()
    idle: float | None = None
    rest: float = 0.0

    @property
    def change(self) -> float:
        """Seconds per call, below 0 where the rung is faster."""
        return self.after - self.before


@dataclass(frozen=True)
class Traffic:
    """What the winner and the baseline move and launch in a call."""

    winner_bytes: int
    winner_kernels: float
    baseline_bytes: int
    baseline_kernels: float


@dataclass(frozen=True)
class Remaining:
    """Where the winner's time could still be reduced: by level of the net, else by class of work."""

    place: str  # a level, or a class
    seconds: float  # above the level's roofline; of the class, all
    total: float = 0.0  # above the roofline over all levels; 0 for a class
    between: float = 0.0  # in what lies between layers, which has no roofline

    @property
    def is_level(self) -> bool:
        """Whether the place is a level of the net."""
        return self.total > 0


def way(summary: RunSummary) -> tuple[list[StageSummary], list[str]]:
    """The rungs from the first ranked one to the winner, and the names of those left out between them.

    A rung that is not faster than the best before it by at least the minimum detectable effect is left out.
    """
    each = seconds_per_image(summary.run)
    names = [stage.name for stage in summary.ranked]
    if summary.ranking.winner not in names:
        return [], []
    *before, winner = summary.ranked[: names.index(summary.ranking.winner) + 1]
    kept: list[StageSummary] = []
    for stage in before:
        if not kept or each[stage.name] * (1 + summary.ranking.effect) <= each[kept[-1].name]:
            kept.append(stage)
    return [*kept, winner], [stage.name for stage in before if stage not in kept]


def steps(summary: RunSummary) -> list[Step]:
    """Each rung on the way to the winner against the one before it; empty with fewer than two."""
    each = seconds_per_image(summary.run)
    if not each:  # then the request may have been refused, with a batch that is no number
        return []
    size = summary.run.batch_size
    calls = {name: seconds * size for name, seconds in each.items()}
    return [_step(before, after, calls, summary.ranking.effect) for before, after in pairwise(way(summary)[0])]


def _step(before: StageSummary, after: StageSummary, calls: dict[str, float], effect: float) -> Step:
    old, new = calls[before.name], calls[after.name]

    def found(finding: Finding, unseen: str = "", share: float | None = None) -> Step:
        return Step(before.name, after.name, old, new, finding, unseen, share)

    if abs(new - old) < effect * old:
        return found("no difference")
    for stage in (before, after):
        seen = seen_share(stage)
        if seen is None:
            return found("no profile", stage.name)
        if seen < SEEN_SHARE and not _idles(stage):
            return found("hidden", stage.name, seen)
    return _attributed(before, after, old, new)


def _attributed(before: StageSummary, after: StageSummary, old: float, new: float) -> Step:
    first, second, change = before.stage.profile, after.stage.profile, new - old
    assert first is not None
    assert second is not None
    classes = _classes(first, second, change)
    idle = _idle_change(first, old, second, new)
    if idle is not None and abs(idle) < LEAST_SHARE * abs(change):
        idle = None
    rest = change - sum(each.seconds for each in classes) - (idle or 0.0)
    return Step(before.name, after.name, old, new, "attributed", classes=classes, idle=idle, rest=rest)


def _idles(stage: StageSummary) -> bool:
    """Whether the GPU had little to do in the profile too: then the time without kernels is idle, not unseen."""
    profile = stage.stage.profile
    return profile is not None and profile.busy_share is not None and profile.busy_share < SEEN_SHARE


def _classes(first: Profile, second: Profile, change: float) -> tuple[ClassChange, ...]:
    """The classes that changed most, and by enough to be named."""
    old, new = by_class(first), by_class(second)
    launched, launches = launches_by_class(first), launches_by_class(second)
    moved_by = {kind: new.get(kind, 0.0) - old.get(kind, 0.0) for kind in {*old, *new}}
    kinds = sorted(moved_by, key=lambda kind: -abs(moved_by[kind]))[:MOST_CLASSES]
    return tuple(
        ClassChange(kind, moved_by[kind], launched.get(kind, 0.0), launches.get(kind, 0.0))
        for kind in kinds
        if abs(moved_by[kind]) >= LEAST_SHARE * abs(change)
    )


def _idle_change(first: Profile, before: float, second: Profile, after: float) -> float | None:
    """The change of the time in which no kernel runs; None where there is no GPU to idle."""
    if first.busy_share is None or second.busy_share is None:
        return None
    old, new = (
        max(0.0, seconds - sum(kernel.seconds_per_call for kernel in profile.kernels))
        for seconds, profile in ((before, first), (after, second))
    )
    return new - old


def largest_step(summary: RunSummary) -> Step | None:
    """The rung that took the most time away; None where no rung took any."""
    largest = min(steps(summary), key=lambda step: step.change, default=None)
    return largest if largest and largest.change < 0 else None


def traffic_of(summary: RunSummary, winner: StageSummary) -> Traffic | None:
    """What the winner and the baseline move and launch; None where either is unknown, or counted another way."""
    baseline = summary.stage(summary.run.baseline)
    if baseline is None or baseline is winner:
        return None
    ours, theirs = (moved(stage.stage) for stage in (winner, baseline))
    fusions = [stage.stage.diagnostics.fusion if stage.stage.diagnostics else None for stage in (winner, baseline)]
    kernels = [fusion.kernels_per_call for fusion in fusions if fusion]
    sources = {ours.source, theirs.source}
    if not ours.amount or not theirs.amount or len(kernels) < 2 or (BY_COUNTERS in sources and len(sources) > 1):
        return None
    return Traffic(ours.amount, kernels[0], theirs.amount, kernels[1])


def remaining(winner: StageSummary) -> Remaining | None:
    """The level with the most time above its roofline; the longest class of work where no layer's time is known."""
    above = seconds_above_by_level(winner.layers, winner.roofline) if winner.roofline else {}
    level = next(iter(above), "")
    if level and above[level] > 0:
        between = sum(layer.seconds for layer in winner.layers if not layer.has_work)
        return Remaining(level, above[level], sum(above.values()), between)
    profile = winner.stage.profile
    if profile is None or not profile.kernels:
        return None
    rest = {kind: seconds for kind, seconds in by_class(profile).items() if kind not in MATRIX_WORK}
    kind = max(rest, key=lambda kind: rest[kind], default=None)
    return Remaining(kind, rest[kind]) if kind else None


def seen_share(stage: StageSummary) -> float | None:
    """How much of a stage's time its kernels or operators in the profile add up to."""
    if stage.stage.profile is None or stage.seconds is None:
        return None
    return sum(kernel.seconds_per_call for kernel in stage.stage.profile.kernels) / stage.seconds.value


def by_class(profile: Profile) -> dict[KernelClass, float]:
    """Seconds per call of every class of work."""
    total: dict[KernelClass, float] = defaultdict(float)
    for row in profile.kernels:
        total[row.kind] += row.seconds_per_call
    return dict(total)


def launches_by_class(profile: Profile) -> dict[KernelClass, float]:
    """Launches per call of every class of work."""
    total: dict[KernelClass, float] = defaultdict(float)
    for row in profile.kernels:
        total[row.kind] += row.launches_per_call
    return dict(total)
