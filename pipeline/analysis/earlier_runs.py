"""The run before this one that asked the same, and what changed since."""

import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.analysis.run_comparison import anything_told, compare, improved, incomparable, regressed
from pipeline.analysis.summary import Since
from pipeline.records import codec
from pipeline.records.run_record import RunRecord

A_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")  # the folder of a day's runs
MOST_READ = 20  # records, the newest first: a folder may hold thousands


def since(run: RunRecord, folder: Path) -> Since | None:
    """What changed from the last finished run of the same question to this one; None where there is none.

    Of a run that was cut off the stages count that it measured.

    Args:
        run: the run.
        folder: its own; the runs beside it are looked through, and those of other days where folders are named so.
    """
    for other in _beside(folder):
        try:
            earlier = codec.load(other)
            if earlier.finished and earlier.started_at < run.started_at and not incomparable(earlier, run):
                changes = compare(earlier, run)
                measured = sum(change.change is not None for change in changes)
                if not run.finished:  # what it didn't come to is neither slower nor broken
                    changes = [change for change in changes if change.change is not None]
                worse, better, told = regressed(changes), improved(changes), anything_told(changes)
                return Since(other.name, earlier.started_at, measured, worse, better, told)
        except (codec.RecordError, OSError, ArithmeticError, LookupError, TypeError, ValueError):
            continue  # whatever lies beside it
    return None


def _beside(folder: Path) -> Iterator[Path]:
    """The folders of other runs, the newest first."""
    folder = folder.resolve()
    found = list(folder.parent.glob(f"*/{codec.FILE}"))
    if A_DAY.fullmatch(folder.parent.name):
        found += folder.parent.parent.glob(f"????-??-??/*/{codec.FILE}")
    written = {path.parent: _written(path) for path in found if path.parent != folder}
    others = {path: moment for path, moment in written.items() if moment is not None}
    yield from sorted(others, key=lambda path: -others[path])[:MOST_READ]


def _written(path: Path) -> float | None:
    """When a file was last written, in seconds; None of a link to nowhere, or a file that has gone meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None
