"""What only the end of a run needs: no refused request waits for it, and a run imports it while its workers import."""

from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread

from pipeline.analysis.summary import RunSummary
from pipeline.analysis.sweep_jobs import read_jobs
from pipeline.orchestrate.shared_reference import drop_all

# Of intervals between two stages, and of the report and its charts; two to three seconds.
LATE = (
    "scipy.stats",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "pipeline.report.write",
)


def begin(names: tuple[str, ...] = LATE) -> Thread:
    """Import these modules in a thread; one that can't be is told of by whoever uses it."""
    thread = Thread(target=_imported, args=(names,), daemon=True)
    thread.start()
    return thread


def _imported(names: tuple[str, ...]) -> None:
    with suppress(ImportError):
        for name in names:
            import_module(name)


def write_report(summary: RunSummary, folder: Path) -> Path:
    """As `pipeline.report.write.write_report`."""
    from pipeline.report import write

    return write.write_report(summary, folder)


def end_of_sweep(folder: Path) -> Path:
    """Draw the report of a sweep's jobs, and drop what only they needed; the report's path."""
    from pipeline.report import write

    drop_all(folder)
    return write.write_sweep_report(read_jobs(folder), folder)
