"""Share one job's findings with the other jobs of a sweep: the machine, its measured peaks and the fp32 reference.

A job takes them over from an earlier job of this process whose request and files were the same (`question`).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.records.content_digest import files_in
from pipeline.records.request import REFERENCE_LOGITS, RunConfig

FOLDER = "references"  # within a sweep's


@dataclass(frozen=True)
class Shared:
    """The findings of a job."""

    job: str
    fields: dict[str, Any]


_shared: dict[Path, Shared] = {}


def question(config: RunConfig) -> dict[str, object]:
    """Return all that the reference depends on, and what is found out with it, by its name."""
    model, data = config.model, config.data
    named = [model.checkpoint, model.weights, model.file, data.path, data.labels, *texts(model.options)]
    return {
        "model": asdict(model),
        "data": asdict(data),
        "task": asdict(config.task),
        "files": [stamp for text in named if text for stamp in stamps(text)],
        "seed": config.seed,
        "device": config.device,
        "threads": config.threads,
        "measured peaks": config.plan.measured_peaks,
        "launcher": config.launcher,
        "environment": sorted(os.environ.items()),
    }


def texts(value: object) -> Iterator[str]:
    """Yield every text in a network's arguments."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts(part)


def stamps(text: str) -> list[tuple[str, int, int]]:
    """Return name, size and time of the file of that name, or of all files of a folder; none where there is nothing."""
    place = Path(text)
    try:
        paths = [path for _, path in files_in(place)] if place.is_dir() else [place]
        return [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    except (OSError, ValueError):
        return []


def place_for(config: RunConfig) -> Path | None:
    """Return where the answer to the run's question belongs; None outside of a sweep."""
    if config.sweep is None:
        return None
    asked = json.dumps(question(config), default=str)
    return Path(config.sweep, FOLDER, f"{hashlib.sha256(asked.encode()).hexdigest()[:32]}-{os.getpid()}")


def taken_over(place: Path | None, folder: Path) -> Shared | None:
    """Return what another job has found out, with its files in the run's folder; None where it has to be found out."""
    shared = _shared.get(place) if place else None
    if place is None or shared is None:
        return None
    try:
        shutil.copytree(place, folder / REFERENCE_LOGITS.parent, dirs_exist_ok=True)
    except OSError:
        del _shared[place]
        return None
    return shared


def keep(place: Path | None, folder: Path, fields: dict[str, Any]) -> None:
    """Keep what this run's worker has found out for the jobs that follow, where the disk takes it.

    Args:
        place: where it belongs.
        folder: the run's.
        fields: of the RunRecord.
    """
    if place is None:
        return
    try:
        ignored = shutil.ignore_patterns("log.txt")  # of one job alone
        shutil.copytree(folder / REFERENCE_LOGITS.parent, place, dirs_exist_ok=True, ignore=ignored)
    except OSError:
        shutil.rmtree(place, ignore_errors=True)
    else:
        _shared[place] = Shared(folder.name, fields)


def drop_all(sweep: Path) -> None:
    """Leave nothing of it in the sweep's folder."""
    shutil.rmtree(sweep / FOLDER, ignore_errors=True)
