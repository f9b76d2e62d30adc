"""How to go on with a run that ended before its time, in the words of the command line."""

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from pipeline.command_line import leave_unread
from pipeline.orchestrate.worker_process import kill_all
from pipeline.records import codec
from pipeline.records.elsewhere import elsewhere
from pipeline.report.formatting import visible


class UnderWay:
    """What this process is at."""

    folder: ClassVar[Path | None] = None  # of the run, or of the sweep


def resuming(folder: Path) -> str:
    """The command that goes on with a run or sweep."""
    return visible(shlex.join(["python", "-m", "pipeline", f"resume={folder}"]))


def drawing(folder: Path) -> str:
    """The command that draws its report again."""
    return visible(shlex.join(["python", "-m", "pipeline.report", str(folder)]))


def recorded() -> Path | None:
    """The folder of the run or sweep that is under way, where it has a record."""
    folder = UnderWay.folder
    there = folder and ((folder / codec.FILE).exists() or any(folder.glob(f"*/{codec.FILE}")))
    return folder if there else None


def end_at_once() -> None:
    """End the workers and say what there is: no report will be drawn. In a signal's handler, so past the streams."""
    kill_all()
    leave_unread()
    text, folder = "ended at once; nothing is saved", recorded()
    if folder:
        text = f"ended at once; what was finished is saved; {resuming(folder)} goes on, {drawing(folder)} draws it"
    with suppress(OSError):
        os.write(2, f"error: {text}\n".encode(errors="backslashreplace"))


def interrupted() -> str:
    """What is said of a run that was interrupted once."""
    folder = recorded()
    return f"interrupted; what was finished is saved{f'; {resuming(folder)} goes on' if folder else ''}"


def drawn_elsewhere(folder: Path, error: OSError) -> str:
    """What is said of a report that a run's folder doesn't take: the record is there, or where it was rescued to."""
    place = elsewhere(folder)
    kept = place if (place / codec.FILE).exists() else folder
    return f"{folder}: {error.strerror or error}; the report is drawn elsewhere; {drawing(kept)} draws it again"
