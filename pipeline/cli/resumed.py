"""What a run that is resumed was asked with, so that `resume=RUN` alone is enough to go on."""

import shlex
from pathlib import Path

from pipeline.analysis.sweep_jobs import job_folders
from pipeline.cli.preset import overrides_in, values
from pipeline.config.request_error import RequestError
from pipeline.orchestrate.under_way import refuse_running
from pipeline.records import codec
from pipeline.records.error_line import first_line
from pipeline.records.renamed import of_today

OWN = {"resume", "resume_despite", "gpu_busy", "hydra.run.dir", "hydra.sweep.dir"}  # which every run has for itself
PROGRAM_WORDS = 3  # python -m pipeline


def resumed_words(arguments: list[str]) -> list[str]:
    """The words that the earlier run was asked with, where the user types none but to resume it; else none.

    Raises:
        RequestError: neither it nor a job of it has a record, or it is still under way; nothing else tells the words.
    """
    typed = {override.key_or_group: override for override in overrides_in(arguments)}
    flags = [word for word in arguments if word.startswith("-")]
    if "resume" not in typed or not typed["resume"].value() or flags or typed.keys() - OWN:
        return []
    earlier = Path(values(typed["resume"])[-1])
    refuse_running(earlier)
    wrong = ""
    for folder in (earlier, *job_folders(earlier)):
        try:
            words = [of_today(word) for word in shlex.split(codec.load(folder).command)[PROGRAM_WORDS:]]
        except (codec.RecordError, OSError, ValueError) as error:
            wrong = wrong or first_line(error)
            continue
        return [word for word in words if not {part.key_or_group for part in overrides_in([word])} & OWN]
    raise RequestError(f"resume={earlier}: {wrong}")


def job_of(sweep: Path, number: int) -> str | None:
    """The folder of a job of an earlier sweep; None where that job has left no record."""
    folder = sweep / str(number)
    return str(folder) if (folder / codec.FILE).exists() else None
