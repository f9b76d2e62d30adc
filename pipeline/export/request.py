"""The request of an export, and the stage of a run that it names, without torch."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Flag, auto
from pathlib import Path
from typing import Any

from pipeline.config import stage_options
from pipeline.config.data_request import TENSORS, VOLUME
from pipeline.config.request_error import RequestError
from pipeline.errors import OneLineError, nearest
from pipeline.export.contract import Dynamic
from pipeline.records import codec
from pipeline.records.run_record import RunRecord, StageRecord

ESCAPED = re.compile(r"\\u(dc[89a-f][0-9a-f])")  # a byte that is no UTF-8, in Python's surrogates


class ExportError(OneLineError):
    """A request that can't become a bundle; one line."""


class Ends(Flag):
    """The ends of the path from an image to its mask that are in the graph."""

    UINT8_IN = auto()  # the graph takes uint8 images and normalises them
    CLASSES_OUT = auto()  # the graph gives the class of every pixel

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "Ends":
        """Return those that a stage's options, or the words of a command line, ask for."""
        return cls(sum(end.value for end in cls if options.get(str(end.name).lower())))

    @property
    def flags(self) -> list[str]:
        """The words of the command line that ask for them."""
        return [f"--{str(end.name).lower().replace('_', '-')}" for end in self]


NO_ENDS = Ends(0)


@dataclass(frozen=True)
class Asked:
    """The request."""

    run: Path  # the run's folder
    to: Path  # folder of the bundle, which must not exist
    stage: str | None = None  # its name; None for the run's winner
    dynamic: tuple[Dynamic, ...] = ()  # axes with variable length
    ends: Ends = NO_ENDS  # to be moved into the graph

    def command(self, stage: str) -> str:
        """Return the command that makes the bundle again."""
        dynamic = [word for name in self.dynamic for word in ("--dynamic", name)]
        words = ["--stage", stage, *dynamic, *self.ends.flags, "--to", str(self.to)]
        return shlex.join(["python", "-m", "pipeline.export", str(self.run), *words])


def loaded(folder: Path, named: str = "a run") -> RunRecord:
    """Load a run's record; a byte of a folder's name that is no text, of which it holds the escape, is one again."""
    run = codec.load(folder, named)
    data = run.config.data
    path, labels = (place and as_typed(place) for place in (data.path, data.labels))
    return replace(run, config=replace(run.config, data=replace(data, path=path, labels=labels)))


def as_typed(place: str) -> str:
    """Return a path with the bytes that `json_text` has written as escapes, unless it is there as it stands."""
    return place if Path(place).exists() else ESCAPED.sub(lambda found: chr(int(found[1], 16)), place)


def chosen(run: RunRecord, name: str | None) -> StageRecord:
    """Return the stage of that name, or the run's winner; raises ExportError."""
    able = [part.name for part in run.stages if part.spec.exports and part.status == "ok"]
    stage = usable(run, name, able)
    if not stage.spec.exports:
        raise ExportError(
            f"--stage {stage.name}: it leaves nothing that runs without this program; {nearest(stage.name, able)}"
        )
    return stage


def usable(run: RunRecord, name: str | None, able: list[str], statuses: Sequence[str] = ("ok",)) -> StageRecord:
    """Return the stage of that name, or the run's winner; `able` are those that a message proposes."""
    from pipeline.analysis.summary import winner_of  # no bundle needs it

    wanted = winner_of(run) if name is None else name
    stage = next((stage for stage in run.stages if stage.name == wanted), None)
    others = f"; {nearest(str(wanted), able)}" if able else ""
    if stage is None:
        raise ExportError(no_winner(able) if name is None else f"--stage {name}: the run has no such stage{others}")
    spec = stage.spec
    if stage.status not in statuses:
        reason = stage.reason or stage.failure or "no reason"
        raise ExportError(f"--stage {stage.name}: {stage.status} in this run: {reason}{others}")
    stage_options.check_options(spec.options, stage_options.signature_of(spec.target), spec.name, spec.target)
    return stage


def no_winner(usable: list[str]) -> str:
    """Return the message for a run without a winner, with the stages that `--stage` accepts."""
    others = f"; --stage takes one of: {', '.join(usable)}" if usable else ", and none of its stages can be taken"
    return f"the run names no winner{others}"


def check_task(run: RunRecord) -> None:
    """Raise RequestError unless the run's network makes masks of images or volumes, or values of volumes."""
    config = run.config
    of_values = config.task.name == "regression" and config.data.name == VOLUME
    if not config.task.has_masks and not of_values:
        raise RequestError(
            f"predict makes masks, and this run's network answers with none: task={config.task.name}; "
            f"values are written of task=regression with data={VOLUME}"
        )
    if config.data.name == TENSORS:
        raise RequestError(
            f"predict makes masks of images and volumes, and this run's network takes data={TENSORS}; "
            "python -m pipeline.export makes a bundle of it"
        )
