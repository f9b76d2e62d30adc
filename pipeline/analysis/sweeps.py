"""The jobs of a sweep: speed and latency over batch and size, the fastest job, and the cost of a new size.

Within a job the ranking tells, from interleaved samples. Jobs are runs of their own, minutes apart: their rates are
compared by intervals, which a baseline that drifted widens, and by the minimum detectable effect.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary, summarize
from pipeline.errors import typed_line
from pipeline.records import codec
from pipeline.records.request import flattened
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.stats.intervals import Estimate, log_of_unfair
from pipeline.stats.outcomes import Unresolved
from pipeline.stats.ranking import Ranking, baseline_seconds, leaders, ranking

KNEE_SHARE = 0.90  # of the best throughput: the least batch that reaches it is the knee
LEAST_COLD_SECONDS = 1.0  # moving the weights and loading a library take as long: less is no build
SHAPE_KEYS = ("data.size", "data.batch_size")

Axis = Literal["batch", "size"]
Measure = Literal["throughput", "latency"]
Points = list[tuple[float, Estimate]]
Outcome = Literal["gains nothing", "unknown", "not resolved", "faster", "costs"]
Setting = tuple[tuple[str, str], ...]  # keys and values


@dataclass(frozen=True)
class Job:
    """One job of a sweep."""

    folder: Path  # its own
    summary: RunSummary | None  # of its record
    reason: str  # why there is no summary

    @property
    def name(self) -> str:
        """The job's number."""
        return self.folder.name


def job_folders(folder: Path) -> list[Path]:
    """Return the folders of a sweep's jobs, by number."""
    numbered = [path for path in folder.iterdir() if path.is_dir() and path.name.isdigit()] if folder.is_dir() else []
    return sorted(numbered, key=lambda path: int(path.name))


def read_jobs(folder: Path, revise: Callable[[RunRecord], RunRecord] = lambda run: run) -> list[Job]:
    """Return all jobs, each summarized once, after `revise`; one that left no record says so."""
    jobs = []
    for path in job_folders(folder):
        summary, reason = None, ""
        try:
            if (path / codec.FILE).exists():
                summary = summarize(revise(codec.load(path)))
            else:
                reason = codec.refusal_in(path) or "it left no record"
        except codec.RecordError as error:
            reason = str(error).replace(str(path.parent), ".")
        except Exception as error:  # noqa: BLE001 - the other jobs have their report, whatever a record holds
            reason = f"its record can't be summarized ({typed_line(error)})"
        jobs.append(Job(path, summary, reason))
    return jobs


@dataclass(frozen=True)
class Curve:
    """A ranked stage along an axis of the sweep; an estimate without interval has its value as both ends."""

    stage: str
    other: int | None  # the value of the other axis
    points: Points
    apart: Setting = ()  # what sets it apart from other curves of the same stage

    @property
    def best(self) -> Estimate:
        """The highest value."""
        return max((y for _, y in self.points), key=lambda y: y.value)

    @property
    def knee(self) -> tuple[float, Estimate]:
        """The least x that gives 90 % of the most."""
        return next(point for point in self.points if point[1].value >= KNEE_SHARE * self.best.value)

    @property
    def knee_is_resolved(self) -> bool:
        """True if the intervals show that the knee gives 90 % of the most, and that no lesser x does."""
        at, knee = self.knee
        most = max((y.high for x, y in self.points if x != at), default=knee.low)
        lower = (y.high < KNEE_SHARE * self.best.low for x, y in self.points if x < at)
        return knee.low >= KNEE_SHARE * most and all(lower)


def curves(jobs: Sequence[Job], axis: Axis, measure: Measure) -> list[Curve]:
    """Return each ranked stage and setting over batch or size, in samples per second or as p50 in milliseconds."""
    found: dict[tuple[str, int | None, Setting], Points] = defaultdict(list)
    runs = [job.summary for job in jobs if job.summary]
    keys = swept_keys(runs)
    for summary in runs:
        for stage in summary.ranked:
            batch, size = summary.run.batch_size, summary.run.config.data.size
            x, other = (batch, size) if axis == "batch" else (size, batch)
            y = Estimate(*[1e3 * stage.latency.p50] * 3) if stage.latency else None
            y = rate_of(summary, stage.name, summary.ranking) if measure == "throughput" else y
            if x is not None and y is not None:
                found[stage.name, other, setting(summary, stage, keys)].append((float(x), y))
    for points in found.values():
        points.sort(key=lambda point: point[0])
    several = {key: points for key, points in found.items() if points[0][0] < points[-1][0]}
    return [Curve(name, other, points, apart) for (name, other, apart), points in several.items()]


def swept_keys(runs: Sequence[RunSummary]) -> list[str]:
    """Return the settings but batch and size in which jobs differ: of those the ones that were typed, if any was."""
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    typed: set[str] = set()
    for summary in runs:
        typed |= {word.partition("=")[0].lstrip("+~") for word in summary.run.command.split()}
        for stage in summary.stages:
            for key, value in _settings(summary, stage).items():
                values[stage.name, key].add(value)
    differ = list(dict.fromkeys(key for (_, key), found in values.items() if len(found) > 1))
    typed |= {f"{key}.name" for key in typed} | {"machine"}
    return [key for key in differ if key in typed] or differ


def setting(summary: RunSummary, stage: StageSummary, keys: Sequence[str]) -> Setting:
    """Return the values of these settings in a stage's job."""
    found = _settings(summary, stage)
    return tuple((key, found[key]) for key in keys if key in found)


def _settings(summary: RunSummary, stage: StageSummary) -> dict[str, str]:
    """Return all that was asked for but size and batch, and the machine."""
    asked = summary.run.config.measured_by().items()
    flat = {key: str(value) for key, value in asked if key not in SHAPE_KEYS and not key.startswith("stage.")}
    machine = summary.run.environment.device_name if summary.run.environment else "unknown machine"
    options = {f"stage.{key}": str(value) for key, value in flattened(stage.stage.spec.options)}
    return {**flat, **options, "machine": machine}


def rate_of(summary: RunSummary, name: str, order: Ranking) -> Estimate | None:
    """Return samples per second of a stage in `order`, the baseline included; None where it has no times."""
    stage, ratio = summary.stage(name), order.ratios[name]
    each = stage.seconds if stage else None
    if each is None and name == summary.baseline:  # whose own stage may have failed, or have no samples beside itself
        each = baseline_seconds(summary.run)
    if each is None:
        return None
    middle = summary.run.batch_size / (stage.pace if stage and stage.pace else each.value)
    if not ratio.bounded:
        return Estimate(middle, 0.0, math.inf)
    wider = math.exp(max(ratio.drift, log_of_unfair(summary.run.drift)))
    return Estimate(middle, middle * each.value / each.high / wider, middle * each.value / each.low * wider)


@dataclass(frozen=True)
class Rate:
    """A stage of a job, the baseline included, with its samples per second at steady state."""

    job: str
    stage: str
    batch: int
    found: Estimate
    effect: float  # the job's minimum detectable one

    def beats(self, other: "Rate") -> bool:
        """Return whether this is shown to be the higher rate: disjoint intervals, and the effect is reached."""
        enough = other.found.value * (1 + max(self.effect, other.effect))
        return self.found.low > other.found.high and self.found.value >= enough


@dataclass(frozen=True)
class Lead:
    """The highest rate measured, and whether it is shown to be that."""

    first: Rate  # the highest
    contenders: list[Rate]  # those that aren't shown to be lower; where there is one, nothing is resolved
    # why the first one's own job names no winner, and so nothing is resolved; None where it names one
    cause: Unresolved | None
    measure_again: str  # the user's command, to measure longer


def lead_of(jobs: Sequence[Job]) -> Lead | None:
    """Return the lead over all jobs, by speed, whatever the winners were chosen by; None where nothing is ranked."""
    leads = []
    for job in jobs:
        if summary := job.summary:
            order, batch = ranking(summary.run), summary.run.batch_size
            estimates = {name: rate_of(summary, name, order) for name in leaders(order)}
            rates = [Rate(job.name, name, batch, rate, order.noise.least) for name, rate in estimates.items() if rate]
            leads += [Lead(rates[0], rates[1:], order.unresolved, summary.measure_again)] if rates else []
    if not leads:
        return None
    best = max(leads, key=lambda lead: lead.first.found.value)
    rates = [rate for lead in leads if lead is not best for rate in (lead.first, *lead.contenders)]
    others = [rate for rate in rates if not best.first.beats(rate)]
    return Lead(best.first, [*best.contenders, *others], best.cause, best.measure_again)


@dataclass(frozen=True)
class Point:
    """One stage at one size; `warm` is seconds per call, None where the stage isn't ranked."""

    size: int
    batch: int
    cold_seconds: float | None
    warm: Estimate | None
    recompiles: int | None
    stage: StageRecord
    status: str
    steady: bool = True  # its times had settled before it was measured
    resolved: bool = True  # its own run tells its time


@dataclass(frozen=True)
class Line:
    """One stage in one setting over the sizes of the sweep, rising."""

    name: str
    points: list[Point]
    apart: Setting = ()  # what sets it apart from other lines of the same stage


@dataclass(frozen=True)
class Padding:
    """The effect of padding the small sizes to the larger one."""

    small: list[Point]
    bucket: Point
    saved_seconds: float  # of set-up
    extra: Estimate  # seconds per call; below 0 where the larger size is the faster one

    @property
    def outcome(self) -> Outcome:
        """The outcome of padding: set-up saved, against the cost of each call."""
        if self.saved_seconds < LEAST_COLD_SECONDS:
            return "gains nothing"
        if not all(point.resolved for point in [*self.small, self.bucket]):
            return "unknown"
        return "faster" if self.extra.high <= 0 else "costs" if self.extra.low > 0 else "not resolved"

    @property
    def calls(self) -> float:
        """Calls until the most that a call may cost has used up what was saved; infinite where it costs nothing."""
        return self.saved_seconds / self.extra.high if self.extra.high > 0 else math.inf


def lines(runs: list[RunSummary]) -> list[Line]:
    """Return every stage that met two sizes or more; jobs that differ in anything else are lines of their own."""
    groups: dict[tuple[str, int, Setting], dict[int, Point]] = defaultdict(dict)
    keys = swept_keys(runs)
    for summary in runs:
        size, batch = summary.run.config.data.size, summary.run.batch_size
        for stage in summary.stages if size is not None else []:
            facts, warm_up = stage.stage.compile_facts, stage.stage.warm_up
            point = Point(
                size=size or 0,
                batch=batch,
                cold_seconds=stage.setup_seconds,
                warm=stage.seconds if stage.ranked else None,
                recompiles=facts.recompiles if facts else None,
                stage=stage.stage,
                status=stage.status,
                steady=warm_up is None or warm_up.steady,
                resolved=summary.doubt is None and stage.compared.outcome != "not resolved",
            )
            groups[stage.name, batch, setting(summary, stage, keys)].setdefault(point.size, point)
    kept = {key: points for key, points in groups.items() if len(points) > 1}
    batches = {batch for _, batch, _ in kept}
    return [
        Line(name, [points[size] for size in sorted(points)], (("batch", str(batch)),) * (len(batches) > 1) + apart)
        for (name, batch, apart), points in kept.items()
    ]


def padding(small: list[Point], bucket: Point) -> Padding:
    """Return the effect of padding these sizes to one that is set up anyway; of several sizes the mean per call."""
    assert bucket.warm
    large, each = bucket.warm, [point.warm for point in small if point.warm]
    calls = 1 if len(small) == 1 else len(small) + 1
    extra = Estimate(
        sum(large.value - one.value for one in each) / calls,
        sum(large.low - one.high for one in each) / calls,
        sum(large.high - one.low for one in each) / calls,
    )
    return Padding(small, bucket, sum(point.cold_seconds or 0.0 for point in small), extra)
