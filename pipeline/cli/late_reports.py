"""The reports of a run and of a sweep, whose templates and pictures no refused request waits for."""

from pathlib import Path

from pipeline.analysis.summary import RunSummary
from pipeline.analysis.sweep_jobs import read_jobs
from pipeline.orchestrate.shared_reference import drop_all


def write_report(summary: RunSummary, folder: Path) -> Path:
    """As `pipeline.report.write.write_report`."""
    from pipeline.report import write

    return write.write_report(summary, folder)


def end_of_sweep(folder: Path) -> Path:
    """Draw the report of a sweep's jobs, and drop what only they needed; the report's path."""
    from pipeline.report import write

    drop_all(folder)
    return write.write_sweep_report(read_jobs(folder), folder)
