"""The jobs of a sweep, and how speed and latency go with batch and size."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.analysis.headline import baseline_seconds
from pipeline.analysis.summary import RunSummary, StageSummary, summarize
from pipeline.records import codec
from pipeline.records.error_line import typed_line
from pipeline.records.run_record import RunRecord
from pipeline.stats.drift import unfair_part
from pipeline.stats.intervals import Estimate
from pipeline.stats.ranking import Ranking

KNEE_SHARE = 0.90  # of the best throughput: the least batch that reaches it is the knee

Axis = Literal["batch", "size"]
Figure = Literal["throughput", "latency"]
Points = list[tuple[float, Estimate]]


@dataclass(frozen=True)
class Job:
    """One job of a sweep.

    Attributes:
        folder: its own.
        run: its record; None where it left none that can be read.
        summary: of its record; None also where the request was refused.
        reason: why there is no summary.
    """

    folder: Path
    run: RunRecord | None
    summary: RunSummary | None
    reason: str

    @property
    def name(self) -> str:
        """Its number."""
        return self.folder.name


@dataclass(frozen=True)
class Curve:
    """One ranked stage over an axis of the sweep; an estimate without an interval is its value alone."""

    stage: str
    other: int | None  # the value of the other axis
    points: Points

    @property
    def knee(self) -> tuple[float, Estimate]:
        """The least x that gives 90 % of the most."""
        most = max(y.value for _, y in self.points)
        return next(point for point in self.points if point[1].value >= KNEE_SHARE * most)

    @property
    def knee_is_resolved(self) -> bool:
        """Whether the intervals show that the knee gives 90 % of the most, and that no lesser x does."""
        best = max((y for _, y in self.points), key=lambda y: y.value)
        at, knee = self.knee
        enough = knee is best or knee.low >= KNEE_SHARE * best.high
        return enough and all(y.high < KNEE_SHARE * best.low for x, y in self.points if x < at)


def job_folders(folder: Path) -> list[Path]:
    """The folders of a sweep's jobs, by number."""
    found = [path for path in folder.iterdir() if path.is_dir() and path.name.isdigit()] if folder.is_dir() else []
    return sorted(found, key=lambda path: int(path.name))


def unchanged(run: RunRecord) -> RunRecord:
    """The record as it is."""
    return run


def read_jobs(folder: Path, revise: Callable[[RunRecord], RunRecord] = unchanged) -> list[Job]:
    """All jobs, each summarized once, after `revise`; one that left no record says so."""
    return [_read(path, revise) for path in job_folders(folder)]


def _read(path: Path, revise: Callable[[RunRecord], RunRecord]) -> Job:
    if not (path / codec.FILE).exists():
        return Job(path, None, None, "it left no record")
    try:
        run = revise(codec.load(path))
    except codec.RecordError as error:
        return Job(path, None, None, str(error).replace(str(path.parent), "."))
    refused = next((warning.text for warning in run.warnings if warning.code == "refused"), "")
    try:
        return Job(path, run, None if refused else summarize(run), refused)
    except Exception as error:  # noqa: BLE001 - the other jobs have their report, whatever a record holds
        return Job(path, None, None, f"its record can't be summarized ({typed_line(error)})")


def curves(jobs: Sequence[Job], axis: Axis, figure: Figure) -> list[Curve]:
    """Every ranked stage over batch or size; jobs that differ in the other axis have curves of their own."""
    lines: dict[tuple[str, int | None], Points] = {}
    for job in jobs:
        for stage in job.summary.ranked if job.summary else []:
            assert job.summary
            batch, size = job.summary.run.batch_size, job.summary.run.settings.data.image_size
            x, other = (batch, size) if axis == "batch" else (size, batch)
            y = _value(job.summary, stage, figure)
            if x is not None and y is not None:
                lines.setdefault((stage.name, other), []).append((float(x), y))
    rising = {key: sorted(points, key=lambda point: point[0]) for key, points in lines.items()}
    return [Curve(name, other, points) for (name, other), points in rising.items() if points[0][0] < points[-1][0]]


def _value(summary: RunSummary, stage: StageSummary, figure: Figure) -> Estimate | None:
    """Samples per second, or the p50 in milliseconds."""
    if figure == "throughput":
        return rate_of(summary, stage.name, summary.ranking)
    if stage.latency is None:
        return None
    p50 = 1e3 * stage.latency.p50
    return Estimate(p50, p50, p50)


def rate_of(summary: RunSummary, name: str, order: Ranking) -> Estimate | None:
    """Samples per second of a stage in `order`, the baseline included, at full load; None where it has no times.

    A baseline that drifted widens the interval by as much; without enough blocks it has no ends.
    """
    stage, ratio = summary.stage(name), order.ratios[name]
    each = stage.seconds if stage else None
    if each is None and name == summary.baseline:  # whose own stage may have failed, or have no samples beside itself
        each = baseline_seconds(summary.run, order)
    if each is None:
        return None
    middle = summary.run.batch_size / (stage.pace if stage and stage.pace else each.value)
    if not ratio.bounded:
        return Estimate(middle, 0.0, math.inf)
    wider = math.exp(max(ratio.drift, unfair_part(summary.run.drift or 0.0)))
    return Estimate(middle, middle * each.value / each.high / wider, middle * each.value / each.low * wider)
