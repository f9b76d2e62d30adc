"""Share one job's findings with the other jobs of a sweep: the machine, its measured peaks and the fp32 reference.

A job takes them over from an earlier one whose request, files and device were the same (`question`). Jobs that run side
by side wait for the first of them.
"""

import fcntl
import hashlib
import json
import os
import pickle
import platform
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.devices.accelerators import cuda_gpus
from pipeline.records.disk import code_digest, files_in, open_lock, write_bytes
from pipeline.records.request import REFERENCE_LOGITS, RunConfig

FOLDER = "references"  # within a sweep's

Shared = tuple[str, dict[str, Any]]  # a job, and the fields of a RunRecord that it has found out
FOUND = "found.pickle"  # a `Shared`
OF_SCHEDULERS = ("SLURM", "SUBMITIT", "CUDA_VISIBLE_DEVICES")  # variables that differ from job to job


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
        "environment": sorted(item for item in os.environ.items() if not item[0].startswith(OF_SCHEDULERS)),
        "machine": [gpu.name for gpu in cuda_gpus()[:1]] if config.device == "cuda" else platform.node(),
        "code": code_digest(),
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
    return Path(config.sweep, FOLDER, hashlib.sha256(asked.encode()).hexdigest()[:32])


@contextmanager
def by_one(place: Path | None) -> Iterator[None]:
    """Let one job at a time find it out, where the file system has locks."""
    with ExitStack() as stack:
        if place is not None:
            with suppress(OSError):
                place.parent.mkdir(parents=True, exist_ok=True)
                lock = open_lock(place.with_suffix(".lock"))
                stack.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def taken_over(place: Path | None, folder: Path) -> Shared | None:
    """Return what another job has found out, with its files in the run's folder; None where it has to be found out."""
    if place is None:
        return None
    try:
        shared: Shared = pickle.loads((place / FOUND).read_bytes())  # noqa: S301 - of a job of this sweep
        ignored = shutil.ignore_patterns(FOUND)
        shutil.copytree(place, folder / REFERENCE_LOGITS.parent, dirs_exist_ok=True, ignore=ignored)
    except OSError:
        return None
    return shared


def keep(place: Path | None, folder: Path, fields: dict[str, Any]) -> None:
    """Keep what this run's worker has found out, `fields` of the RunRecord, for later jobs where the disk takes it."""
    if place is None:
        return
    try:
        ignored = shutil.ignore_patterns("log.txt")  # of one job alone
        shutil.copytree(folder / REFERENCE_LOGITS.parent, place, dirs_exist_ok=True, ignore=ignored)
        write_bytes(pickle.dumps((folder.name, fields)), place / FOUND)
    except OSError:
        shutil.rmtree(place, ignore_errors=True)
