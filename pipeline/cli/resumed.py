"""What a run that is resumed was asked with, so that `resume=RUN` alone is enough to go on."""

import shlex
from difflib import get_close_matches
from pathlib import Path

from pipeline.analysis.sweep_jobs import job_folders
from pipeline.cli.preset import is_there, overrides_in, values
from pipeline.config.request_error import RequestError
from pipeline.orchestrate.under_way import refuse_running
from pipeline.records import codec
from pipeline.records.error_line import first_line

OWN = {"resume", "resume_despite", "gpu_busy", "hydra.run.dir", "hydra.sweep.dir"}  # which every run has for itself
PROGRAM_WORDS = 3  # python -m pipeline
OUTPUTS = Path("outputs")  # where conf/config.yaml keeps runs
SHOW = {"--cfg", "-c", "--help", "-h", "--hydra-help"}  # flags by which nothing runs
NO_SWEEP = "no job of a sweep is in it; a single run is resumed without --multirun"


def resumed_words(arguments: list[str]) -> list[str]:
    """The words that the earlier run was asked with, where the user types none but to resume it; else none.

    Raises:
        RequestError: neither it nor, of a sweep, a job of it has a record, or it is still under way.
    """
    typed = {override.key_or_group: override for override in overrides_in(arguments)}
    flags = [word for word in arguments if word.startswith("-")]
    if "resume" not in typed or not typed["resume"].value():
        return []
    if any(flag in SHOW for flag in flags):
        return []
    earlier = Path(values(typed["resume"])[-1])
    alone = not flags and not typed.keys() - OWN
    if "${" in str(earlier) and not alone:
        return []  # for Hydra to fill in
    refuse_running(earlier)
    sweeps = "hydra.mode" in typed or any(flag == "-m" or flag.startswith("--m") for flag in flags)
    jobs = job_folders(earlier) if (sweeps or alone) and is_there(str(earlier)) else []
    words = recorded_words(earlier, jobs if sweeps else [earlier, *jobs], sweeps)
    return [word for word in words if not {part.key_or_group for part in overrides_in([word])} & OWN] if alone else []


def recorded_words(earlier: Path, folders: list[Path], sweeps: bool) -> list[str]:
    """What the first of `folders` that has a record was asked with: `earlier` itself, or its jobs.

    Raises:
        RequestError: none has; the line says which run, or sweep, may be meant.
    """
    wrong = ""
    for folder in folders:
        try:
            return shlex.split(codec.load(folder).command)[PROGRAM_WORDS:]
        except (codec.RecordError, OSError, ValueError) as error:
            wrong = wrong or first_line(error)
    runs = any(is_there(str(folder / name)) for folder in folders for name in (codec.FILE, codec.CLAIM))
    none = NO_SWEEP if is_there(str(earlier)) else "no such folder"
    raise RequestError(f"resume={earlier}: {wrong or none}{'' if runs else meant(earlier, sweeps)}")


def meant(folder: Path, sweeps: bool) -> str:
    """A clause that names the run, or sweep, whose folder is most like one that is none's, or else the newest."""
    record = f"0/{codec.FILE}" if sweeps else codec.FILE
    places = [(folder, "*"), (folder, "*/*"), (folder.parent, "*"), (OUTPUTS, "*/*")]
    records = [path for place, level in places if is_there(str(place)) for path in place.glob(f"{level}/{record}")]
    times = {str(path.parents[sweeps]): path.stat().st_mtime for path in records}
    newest = sorted(times, key=times.__getitem__, reverse=True)
    close = get_close_matches(str(folder), newest, n=1)
    return f"; did you mean {(close or newest)[0]!r}?" if newest else ""


def job_of(sweep: Path, number: int) -> str | None:
    """The folder of a job of an earlier sweep; None where that job has left no record."""
    folder = sweep / str(number)
    return str(folder) if (folder / codec.FILE).exists() else None
