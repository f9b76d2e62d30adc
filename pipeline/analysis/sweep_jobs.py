"""The jobs of a sweep, and how speed and latency go with batch and size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.analysis.summary import RunSummary, StageSummary, summarize
from pipeline.records import codec
from pipeline.records.error_line import typed_line
from pipeline.records.run_record import RunRecord

KNEE_SHARE = 0.90  # of the best throughput: the least batch that reaches it is the knee

Axis = Literal["batch", "size"]
Figure = Literal["throughput", "latency"]
Points = list[tuple[float, float]]


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
    """One ranked stage over an axis of the sweep."""

    stage: str
    other: int | None  # the value of the other axis
    points: Points

    @property
    def knee(self) -> tuple[float, float]:
        """The least x that gives 90 % of the most."""
        most = max(y for _, y in self.points)
        return next(point for point in self.points if point[1] >= KNEE_SHARE * most)


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
    if not (path / "results.json").exists():
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
            y = _value(stage, figure)
            if x is not None and y is not None:
                lines.setdefault((stage.name, other), []).append((float(x), y))
    return [
        Curve(name, other, sorted(points)) for (name, other), points in lines.items() if len({x for x, _ in points}) > 1
    ]


def _value(stage: StageSummary, figure: Figure) -> float | None:
    """Images per second, or the p50 in milliseconds."""
    if figure == "throughput":
        return stage.images_per_second or None
    return 1e3 * stage.latency.p50 if stage.latency else None


def fastest(jobs: Sequence[Job]) -> tuple[Job, StageSummary] | None:
    """The job and the stage with the most images per second."""
    ranked = [(job, stage) for job in jobs for stage in (job.summary.ranked if job.summary else [])]
    return max(ranked, key=lambda pair: pair[1].images_per_second or 0.0, default=None)
