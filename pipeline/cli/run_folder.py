"""A run's folder: claimed before the run, and withdrawn where the request was refused."""

import shutil
from contextlib import suppress
from pathlib import Path

from pipeline.config.request_error import RequestError
from pipeline.orchestrate import check_script
from pipeline.records import codec
from pipeline.report.drawn_files import DRAWN

OWN_FILES = (codec.FILE, check_script.FILE, "config.yaml", codec.CLAIM)
OF_NO_STAGE = ("reference", "baseline", "aa_pairs")  # folders of workers


def claim(folder: Path) -> Path:
    """A folder that no other run has: runs started in the same second get the same name from Hydra.

    Raises:
        RequestError: what is in it is no run's, and has the name of something that a run writes and removes.
        OSError: it can't be made.
    """
    for number in range(1, 1000):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        try:
            candidate.mkdir(parents=True, exist_ok=True)
            there = [name for name in (*OWN_FILES, *DRAWN, *OF_NO_STAGE) if (candidate / name).exists()]
            if there and codec.CLAIM not in there:
                shutil.rmtree(candidate / ".hydra", ignore_errors=True)  # what Hydra has just put there
                raise RequestError(
                    f"{candidate}: a run would write over the {there[0]} that is in it; name another folder"
                )
            (candidate / codec.CLAIM).touch(exist_ok=False)
        except FileExistsError:
            continue
        return candidate
    raise RequestError(f"{folder}: a thousand runs have this name already; set hydra.run.dir")


def stages_in(folder: Path) -> int:
    """How many stages have come to an end on the record in the folder; 0 where none can be read."""
    try:
        return len(codec.load(folder).stages)
    except (codec.RecordError, OSError):
        return 0


def withdraw(folder: Path) -> None:
    """Leave nothing of a run that came to no stage, but for logs that say why; what isn't the run's own stays."""
    if stages_in(folder):
        return
    for name in OWN_FILES:
        with suppress(OSError):
            (folder / name).unlink()
    shutil.rmtree(folder / ".hydra", ignore_errors=True)
    workers = [folder / name for name in OF_NO_STAGE]
    if not any(log.stat().st_size for place in workers for log in place.rglob("log.txt")):
        for place in workers:
            shutil.rmtree(place, ignore_errors=True)
    with suppress(OSError):  # something else is in it
        folder.rmdir()
