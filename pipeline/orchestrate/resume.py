"""Take over what an earlier run has finished, where nothing that its figures depend on has changed since."""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.analysis.run_comparison import Difference, config_differences, machine_differences, variable_differences
from pipeline.config.request_error import RequestError
from pipeline.errors import few
from pipeline.records import codec
from pipeline.records.codec import CLAIM
from pipeline.records.request import SCRATCH, ResumeDespite, RunConfig, StageSpec
from pipeline.records.run_record import RunRecord, StageRecord

ON_DEVICE = {"device name", "cpu name", "cpu threads"}
NO_VERSION = {"commit", "launcher"}  # the sources' own digest is compared
MOST_NAMED = 4


@contextmanager
def under_way(folder: Path) -> Iterator[None]:
    """Mark the run of this folder as under way, where its file system has locks."""
    with ExitStack() as stack:
        with suppress(OSError):
            claim = os.open(folder / CLAIM, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            stack.callback(os.close, claim)
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def refuse_running(folder: Path) -> None:
    """Raise if the run to resume is still under way."""
    with suppress(OSError), ExitStack() as stack:
        claim = os.open(folder / CLAIM, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        stack.callback(os.close, claim)
        try:
            fcntl.flock(claim, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RequestError(f"resume={folder}: it is still under way; wait for it, or end it by Ctrl-C") from None


@dataclass(frozen=True)
class Earlier:
    """An earlier run that this one continues."""

    folder: Path
    record: RunRecord
    despite: frozenset[ResumeDespite]

    def stage(self, spec: StageSpec, baseline: str) -> StageRecord | None:
        """Return the finished record of a stage against `baseline`; None where something is left to do."""
        kept = next((stage for stage in self.record.stages if stage.name == spec.name), None)
        if kept is None or any(pair.baseline != baseline for pair in kept.pairs):
            return None
        sampled = bool(kept.pairs) and all(pair.blocks for pair in kept.pairs)
        finished = kept.status == "inaccurate" or (kept.status == "ok" and not kept.reason and sampled)
        return kept if finished else None

    def refuse_where_it_differs(self, found: dict[ResumeDespite, list[str]]) -> None:
        """Raise if the runs differ in a kind that `despite` doesn't allow."""
        wrong = {kind: lines for kind, lines in found.items() if lines and kind not in self.despite}
        if wrong:
            said = "; ".join(f"{kind}: {few(lines, MOST_NAMED)}" for kind, lines in wrong.items())
            allowed = ",".join([*sorted(self.despite), *wrong])
            how = f"resume_despite=[{allowed}] resumes anyway"
            raise RequestError(f"resume={self.folder}: cannot resume: the request differs ({said}); {how}")


def opened(config: RunConfig, record: RunRecord) -> Earlier | None:
    """Return the run to resume; None if there is none."""
    if config.resume is None:
        return None
    refuse_running(Path(config.resume))
    try:
        earlier = Earlier(Path(config.resume), codec.load(Path(config.resume)), frozenset(config.resume_despite))
    except (codec.RecordError, OSError) as error:
        raise RequestError(f"resume={config.resume}: {error}") from None
    old, now = earlier.record, codec.without_secrets(record).config
    if now.model.trained is None:  # a worker finds out whether the network's own code reads its weights
        now = replace(now, model=replace(now.model, trained=old.config.model.trained))
    earlier.refuse_where_it_differs(
        {
            "code": [
                *_changed("the program's sources", old.code_sha256, record.code_sha256),
                *_changed("your own modules", old.own_code_sha256, record.own_code_sha256),
            ],
            "config": _lines(config_differences(old.config, now)),
            "data": _changed("the images or labels", old.data_sha256, record.data_sha256),
        }
    )
    return earlier


def check_machine(earlier: Earlier, record: RunRecord) -> None:
    """Compare the machine and the weights, which a worker has found out meanwhile."""
    old = earlier.record
    if old.environment is None or old.reference is None or record.environment is None or record.reference is None:
        return  # the earlier run measured nothing
    differences = machine_differences(old.environment, record.environment)
    differences = [part for part in differences if part.what not in NO_VERSION]
    told = codec.without_secrets(record).environment  # as records keep variables
    weights = (old.reference.weights_sha256, record.reference.weights_sha256)
    earlier.refuse_where_it_differs(
        {
            "weights": _changed("the weights", *weights),
            "device": _lines(part for part in differences if part.what in ON_DEVICE),
            "versions": _lines(part for part in differences if part.what not in ON_DEVICE),
            "environment": _lines(variable_differences(old.environment, told)),
        }
    )


def take_over(earlier: Earlier, stage: StageRecord, folder: Path) -> None:
    """Link the files of a stage that is taken over into the run's folder, or copy them."""
    source = earlier.folder / stage.name
    if source.is_dir():
        shutil.copytree(
            source, folder / stage.name, symlinks=True, dirs_exist_ok=True,
            ignore=shutil.ignore_patterns(SCRATCH), copy_function=_linked,
        )  # fmt: skip


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target)


def _changed(what: str, old: str | None, new: str | None) -> list[str]:
    if old is None and new is not None:
        return [f"{what} were not recorded"]
    return [] if old == new else [f"{what} have changed"]


def _lines(differences: Iterable[Difference]) -> list[str]:
    return [f"{part.what} was {part.old}, is {part.new}" for part in differences]
