"""What each rung took away, in sentences: neighbours compared by class of work."""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from pipeline.analysis.summary import Digest, Row
from pipeline.records.run_record import Profile
from pipeline.report import formatting as words
from pipeline.stats.ranking import seconds_per_image

LEAST_SHARE = 0.05  # of a change, that a class must hold to be named
MOST_CLASSES = 3
SEEN_SHARE = 0.5  # of a stage's time that its profile must account for, or the classes say little


@dataclass(frozen=True)
class Step:
    """One rung on the way from the baseline to the winner, in seconds per call."""

    name: str
    before: float
    after: float
    sentence: str


def way(found: Digest) -> tuple[list[Row], list[str]]:
    """The rungs from the first ranked one to the winner, and the names of those left out between them.

    A rung that isn't faster than the best before it, by what can be claimed, took nothing away: it isn't on the way.
    """
    each = seconds_per_image(found.run)
    rows = [row for row in found.rows if row.ranked]
    names = [row.name for row in rows]
    if found.ranking.winner not in names:
        return [], []
    *before, winner = rows[: names.index(found.ranking.winner) + 1]
    kept: list[Row] = []
    for row in before:
        if not kept or each[row.name] * (1 + found.ranking.floor) <= each[kept[-1].name]:
            kept.append(row)
    return [*kept, winner], [row.name for row in before if row not in kept]


def steps(found: Digest) -> list[Step]:
    """Each rung on the way to the winner against the one before it; empty with fewer than two."""
    each = seconds_per_image(found.run)
    if not each:  # then the config may be one that was refused, with a batch that is no number
        return []
    size = found.run.batch_size
    return [
        Step(
            row.name,
            each[before.name] * size,
            each[row.name] * size,
            sentence(before, row, each, size, found.ranking.floor),
        )
        for before, row in pairwise(way(found)[0])
    ]


def sentence(before: Row, after: Row, each: dict[str, float], size: int, floor: float) -> str:
    """Such as "half → compile: −3.2 ms a call. By the profile: pointwise −2.6 ms (46 → 23 launches)."."""
    change = (each[after.name] - each[before.name]) * size
    text = f"{before.name} → {after.name}: {signed(change)} a call."
    if abs(change) < floor * each[before.name] * size:
        return f"{text} That is no difference to claim."
    for row in (before, after):
        seen = seen_share(row)
        if seen is None:
            return f"{text} Why is unknown: {row.name} has no profile."
        if seen < SEEN_SHARE and not _idles(row):
            return f"{text} Why is unknown: the profiler sees inside only {words.share(seen)} of {row.name}'s time."
    first, second = before.stage.profile, after.stage.profile
    assert first is not None
    assert second is not None
    parts, rest = _parts(first, second, change)
    idle = _idle(first, each[after.name] * size - change, second, each[after.name] * size)
    if idle is not None and abs(idle) >= LEAST_SHARE * abs(change):
        parts, rest = [*parts, f"{signed(idle)} from idle between kernels"], rest - idle
    named = ", ".join(parts) if parts else "no class of work changed by much"
    return f"{text} By the profile: {named}; the rest, {signed(rest)}."


def _idles(row: Row) -> bool:
    """Whether a GPU had little to do in the profile too: then what the kernels leave is idle time, not unseen."""
    profile = row.stage.profile
    return profile is not None and profile.busy_share is not None and profile.busy_share < SEEN_SHARE


def _parts(first: Profile, second: Profile, change: float) -> tuple[list[str], float]:
    """The classes that changed most, as clauses, and what is left of `change` without them."""
    old, new = by_class(first), by_class(second)
    launched, launches = launches_by_class(first), launches_by_class(second)
    moved = {kind: new.get(kind, 0.0) - old.get(kind, 0.0) for kind in {*old, *new}}
    kinds = sorted(moved, key=lambda kind: -abs(moved[kind]))[:MOST_CLASSES]
    kinds = [kind for kind in kinds if abs(moved[kind]) >= LEAST_SHARE * abs(change)]
    parts = [
        f"{kind} {signed(moved[kind])} ({launched.get(kind, 0):.0f} → {launches.get(kind, 0):.0f} launches)"
        for kind in kinds
    ]
    return parts, change - sum(moved[kind] for kind in kinds)


def _idle(first: Profile, before: float, second: Profile, after: float) -> float | None:
    """The change of the headline time in which no kernel runs; None where there is no GPU to idle."""
    if first.busy_share is None or second.busy_share is None:
        return None
    old, new = (
        max(0.0, seconds - sum(kernel.seconds_per_call for kernel in profile.kernels))
        for seconds, profile in ((before, first), (after, second))
    )
    return new - old


def signed(change: float) -> str:
    """A change of time with its sign."""
    return f"{'−' if change < 0 else '+'}{words.seconds(abs(change))}"


def seen_share(row: Row) -> float | None:
    """How much of a stage's time its kernels or operators in the profile add up to."""
    if row.stage.profile is None or row.seconds is None:
        return None
    return sum(kernel.seconds_per_call for kernel in row.stage.profile.kernels) / row.seconds.value


def by_class(profile: Profile) -> dict[str, float]:
    """Seconds per call of every class of work."""
    total: dict[str, float] = defaultdict(float)
    for row in profile.kernels:
        total[row.kind] += row.seconds_per_call
    return dict(total)


def launches_by_class(profile: Profile) -> dict[str, float]:
    """Launches per call of every class of work."""
    total: dict[str, float] = defaultdict(float)
    for row in profile.kernels:
        total[row.kind] += row.launches_per_call
    return dict(total)
