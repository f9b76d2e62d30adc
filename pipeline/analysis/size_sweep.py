"""What a new image size costs in a sweep over data.size, and whether padding sizes to a larger one pays."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pipeline.analysis.summary import RunSummary, StageSummary
from pipeline.records.diagnostics import SearchCount, Searcher
from pipeline.records.run_record import StageRecord
from pipeline.stats.intervals import Estimate

LEAST_COLD_SECONDS = 1.0  # moving the weights and loading a library take as long: less is no build
SHAPE_KEYS = ("data.size", "data.batch_size")

Outcome = Literal["gains nothing", "not resolved", "faster", "costs"]


@dataclass(frozen=True)
class Search:
    """Who searched for the fastest algorithm: how much, or that it was only asked to."""

    searcher: Searcher
    counted: SearchCount | None
    method: str | None = None  # that was asked for
    candidates: int | None = None  # that were timed, from the stage's compilation


@dataclass(frozen=True)
class Point:
    """One stage at one size; `warm` is seconds per call, None where the stage isn't ranked."""

    size: int
    batch: int
    cold_seconds: float | None
    warm: Estimate | None
    recompiles: int | None
    searches: tuple[Search, ...]
    status: str
    steady: bool = True  # its times had settled before it was measured


@dataclass(frozen=True)
class Line:
    """One stage in one setting over the sizes of the sweep, rising."""

    name: str
    points: list[Point]
    apart: tuple[tuple[str, str], ...] = ()  # what sets it apart from other lines of the same stage


@dataclass(frozen=True)
class Padding:
    """What padding the small sizes to the larger one does."""

    small: list[Point]
    bucket: Point
    saved_seconds: float  # of set-up
    extra: Estimate  # seconds per call; below 0 where the larger size is the faster one

    @property
    def outcome(self) -> Outcome:
        """Whether set-up is saved, and what a call then costs."""
        if self.saved_seconds < LEAST_COLD_SECONDS:
            return "gains nothing"
        return "faster" if self.extra.high <= 0 else "costs" if self.extra.low > 0 else "not resolved"

    @property
    def calls(self) -> float:
        """Calls until the most that a call may cost has used up what was saved."""
        return self.saved_seconds / self.extra.high

    @property
    def unsettled(self) -> list[int]:
        """Sizes whose times had not settled, so that the figures are rough."""
        return [point.size for point in [*self.small, self.bucket] if not point.steady]


def lines(runs: list[RunSummary]) -> list[Line]:
    """Every stage that met two sizes or more; jobs that differ in anything else are lines of their own."""
    groups: dict[str, dict[int, Point]] = {}
    settings: dict[str, tuple[str, dict[str, str]]] = {}
    for summary in runs:
        size = summary.run.settings.data.image_size
        for stage in summary.stages if size is not None else []:
            setting = _setting(summary, stage)
            key = json.dumps([stage.name, setting], sort_keys=True)
            settings[key] = (stage.name, setting)
            groups.setdefault(key, {}).setdefault(size or 0, _point(summary, stage, size or 0))
    kept = [key for key, points in groups.items() if len(points) > 1]
    every = [settings[key] for key in kept]
    return [
        Line(settings[key][0], [groups[key][size] for size in sorted(groups[key])], _apart(settings[key], every))
        for key in kept
    ]


def _setting(summary: RunSummary, stage: StageSummary) -> dict[str, str]:
    """All that was asked for but the size, and the machine."""
    asked = {key: part for key, part in summary.run.config.items() if key != "stage"}
    flat = {key: text for key, text in _flat(asked, "") if key not in SHAPE_KEYS}
    machine = summary.run.environment.device_name if summary.run.environment else "unknown machine"
    return {**flat, **dict(_flat(stage.stage.options, "")), "batch": str(summary.run.batch_size), "machine": machine}


def _flat(value: Mapping[str, object], prefix: str) -> Iterable[tuple[str, str]]:
    for key, part in value.items():
        if isinstance(part, dict):
            yield from _flat(part, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(part)


def _apart(own: tuple[str, dict[str, str]], others: list[tuple[str, dict[str, str]]]) -> tuple[tuple[str, str], ...]:
    """What sets a setting apart from others of the same stage."""
    name, setting = own
    same = [other for stage, other in others if stage == name]
    return tuple((key, value) for key, value in setting.items() if any(other.get(key) != value for other in same))


def _point(summary: RunSummary, stage: StageSummary, size: int) -> Point:
    facts, warm_up = stage.stage.compile_facts, stage.stage.warm_up
    return Point(
        size=size,
        batch=summary.run.batch_size,
        cold_seconds=stage.setup_seconds,
        warm=stage.seconds if stage.ranked else None,
        recompiles=facts.recompiles if facts else None,
        searches=tuple(searches_of(stage)),
        status=stage.status,
        steady=warm_up is None or warm_up.steady,
    )


def searches_of(stage: StageSummary) -> list[Search]:
    """Who searched for this size: each that was counted, then those that were asked to and have no count."""
    counts = stage.stage.diagnostics.searches if stage.stage.diagnostics else []
    known = {each.searcher for each in counts}
    counted = [Search(each.searcher, each) for each in counts]
    return [*counted, *(each for each in _asked(stage.stage) if each.searcher not in known)]


def _asked(stage: StageRecord) -> list[Search]:
    """Who was asked to search, counted or not."""
    facts = stage.compile_facts
    tiles = facts.candidates_measured if facts else None
    own = [Search("own kernels", None, candidates=tiles)] if tiles is not None else []
    return own + [Search(each.searcher, None, each.method) for each in stage.searches_asked]


def usable(line: Line) -> list[Point]:
    """The points with a set-up and a time."""
    return [point for point in line.points if point.warm and point.cold_seconds is not None]


def worth_padding(points: list[Point]) -> bool:
    """Whether any size but the largest takes long enough to set up."""
    return max(point.cold_seconds or 0.0 for point in points[:-1]) >= LEAST_COLD_SECONDS


def paddings(points: list[Point]) -> list[Padding]:
    """Each size padded to the next larger one, and at last all sizes padded to the largest."""
    found = [padding([small], large) for small, large in pairwise(points)]
    *rest, largest = points
    return [*found, padding(rest, largest)] if len(points) > 2 else found


def padding(small: list[Point], bucket: Point) -> Padding:
    """What padding these sizes to one that is set up anyway does."""
    return Padding(small, bucket, sum(point.cold_seconds or 0.0 for point in small), extra(small, bucket))


def extra(small: Sequence[Point], bucket: Point) -> Estimate:
    """Seconds per call that padding costs: of one size's calls, or the mean over all where several share the bucket.

    Below 0 where the larger size is the faster one. The interval reaches from the least to the most that the sizes'
    own intervals leave room for.
    """
    assert bucket.warm
    large, each = bucket.warm, [point.warm for point in small if point.warm]
    calls = 1 if len(small) == 1 else len(small) + 1
    return Estimate(
        sum(large.value - one.value for one in each) / calls,
        sum(large.low - one.high for one in each) / calls,
        sum(large.high - one.low for one in each) / calls,
    )
