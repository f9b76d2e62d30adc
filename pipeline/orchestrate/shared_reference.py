"""What one job of a sweep finds out for the others: the machine, its measured peaks and the fp32 reference.

A job takes it over from an earlier one where everything that it depends on is the same (`question`), and every module
that the net's process had imported lies as it lay. Its files are in the sweep's folder, and what they must hold is in
this process's memory, which no stage can write into; so each process of a launcher that has several finds out its own.
"""

import hashlib
import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.devices.discover import cuda_gpus
from pipeline.devices.host import cpu_name, driver_version
from pipeline.inputs import weights_file
from pipeline.orchestrate.resting_files import Marks, files_of, first_changed, marks
from pipeline.records.content_digest import code_digest, data_digest, file_digest
from pipeline.records.file_mark import mark_of
from pipeline.records.request import REFERENCE_LOGITS, REFERENCE_MODULES, RunConfig

FOLDER = "references"  # within a sweep's
OF_ONE_JOB = {"log.txt", REFERENCE_MODULES.name}  # files that no other job needs


@dataclass(frozen=True)
class Shared:
    """What a job has found out.

    Attributes:
        job: its folder within the sweep's.
        fields: of the RunRecord.
        files: SHA-256 of each file of the reference's folder, by its name.
        place: where they lie.
        modules: what the net's process had imported.
    """

    job: str
    fields: dict[str, Any]
    files: dict[str, str]
    place: Path
    modules: Marks


_shared: dict[Path, Shared] = {}


def question(config: RunConfig) -> dict[str, object]:
    """All that the reference depends on, and what is found out with it, by its name.

    Raises:
        OSError: a file of the request can't be read.
    """
    model, data = config.model, config.data
    weights = weights_file.find(model.weights) if model.weights else None
    places = [data.path, data.labels]
    return {
        "code": code_digest.__wrapped__(),
        "model": asdict(model),
        "weights": [file_digest(weights), mark_of(weights)] if weights else None,
        "files of the net's arguments": marked([text for text in texts(model.options) if is_place(text)]),
        "data": asdict(data),
        "images and labels": [data_digest([part for part in places if part and is_place(part)]), marked(places)],
        "task": asdict(config.task),
        "seed": config.seed,
        "device": config.device,
        "threads": config.threads,
        "measured peaks": config.plan.measured_peaks,
        "launcher": config.launcher,
        "machine": [cpu_name(), processors(), driver_version(), gpus()],
        "packages": marked(sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}), deep=False),
        "environment": sorted(os.environ.items()),
        "started in": [str(Path.cwd()), sys.path],
    }


def texts(value: object) -> Iterator[str]:
    """Every text in a net's arguments."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts(part)


def is_place(text: str) -> bool:
    """Whether a file or a folder has that name."""
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):
        return False


def marked(places: list[str | None] | list[str], *, deep: bool = True) -> list[tuple[str, object]]:
    """The mark of each of these files, and of every file in those that are folders where it is to go so deep."""
    found = [path for place in places if place for path in (files_of(Path(place)) if deep else [Path(place)])]
    return [(str(path), mark_of(path)) for path in found]


def processors() -> list[int]:
    """Those that this process may run on; none where the system doesn't say."""
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []


def gpus() -> list[str]:
    """The UUIDs of those that CUDA may use."""
    return [gpu.telemetry.uuid() for gpu in cuda_gpus() if gpu.telemetry]


def place_for(config: RunConfig) -> Path | None:
    """Where the answer to the run's question belongs; None where no other job asks it, or nobody can tell which it is.

    Expects to be asked before the reference's worker is started, and after the run has begun to watch its files.
    """
    if config.sweep is None:
        return None
    try:
        asked = json.dumps(question(config), default=str)
    except OSError:
        return None
    return Path(config.sweep, FOLDER, f"{hashlib.sha256(asked.encode()).hexdigest()[:32]}-{os.getpid()}")


def taken_over(place: Path | None, folder: Path) -> Shared | None:
    """What another job has found out, with its files in the run's folder; None where it has to be found out (again)."""
    found = _shared.get(place) if place else None
    if found is None or first_changed(found.modules):
        return None
    target = folder / REFERENCE_LOGITS.parent
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, digest in found.files.items():
            copied = target / f"{name}.part"
            shutil.copyfile(found.place / name, copied)
            if file_digest(copied) != digest:
                raise OSError(f"{found.place / name} was written over")
            copied.replace(target / name)
    except OSError:
        drop(found.place)
        return None
    return found


def keep(place: Path | None, folder: Path, fields: dict[str, Any], began: float) -> None:
    """Keep what this run's worker has found out for the jobs that follow, where the disk takes it.

    Args:
        place: where it belongs.
        folder: the run's.
        fields: of the RunRecord.
        began: when the run did, seconds since 1970; what has changed since then, the worker may have read before.
    """
    if place is None:
        return
    source, part = folder / REFERENCE_LOGITS.parent, place.with_name(f"{place.name}.part")
    try:
        modules = marks(map(Path, (folder / REFERENCE_MODULES).read_text(encoding="utf-8").splitlines()))
        if any(mark is None or mark[-1] >= began * 1e9 for mark in modules.values()):
            return
        drop(place)
        part.mkdir(parents=True)
        files = [path for path in source.iterdir() if path.is_file() and path.name not in OF_ONE_JOB]
        digests = {path.name: file_digest(Path(shutil.copyfile(path, part / path.name))) for path in files}
        part.rename(place)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        return
    _shared[place] = Shared(str(folder.name), fields, digests, place, modules)


def drop(place: Path) -> None:
    """Forget what was found out."""
    _shared.pop(place, None)
    shutil.rmtree(place, ignore_errors=True)


def drop_all(sweep: Path) -> None:
    """Leave nothing of it in the sweep's folder."""
    shutil.rmtree(sweep / FOLDER, ignore_errors=True)
