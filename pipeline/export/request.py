"""The request of an export, and the stage of a run that it names, without torch."""

import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipeline.analysis.summary import winner_of
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


@dataclass(frozen=True)
class Ends:
    """The ends of the path from an image to its mask that are in the graph."""

    images_in: bool = False  # the graph takes uint8 images and normalises them
    classes_out: bool = False  # the graph gives the class of every pixel

    @classmethod
    def of_stage(cls, stage: StageRecord) -> "Ends":
        """Return those that are in a stage's own graph, by its options."""
        options = stage.spec.options
        return cls(bool(options.get("uint8_in")), bool(options.get("classes_out")))

    def and_those(self, others: "Ends") -> "Ends":
        """Return these and others."""
        return Ends(self.images_in or others.images_in, self.classes_out or others.classes_out)

    def without(self, others: "Ends") -> "Ends":
        """Return these but for others."""
        return Ends(self.images_in and not others.images_in, self.classes_out and not others.classes_out)

    @property
    def flags(self) -> list[str]:
        """The flags that ask for them."""
        return ["--uint8-in"] * self.images_in + ["--classes-out"] * self.classes_out


@dataclass(frozen=True)
class Asked:
    """The request."""

    run: Path  # the run's folder
    to: Path  # folder of the bundle, which must not exist
    stage: str | None = None  # its name; None for the run's winner
    dynamic: tuple[Dynamic, ...] = ()  # axes with variable length
    ends: Ends = field(default_factory=Ends)  # to be moved into the graph

    def command(self, stage: str) -> str:
        """Return the command that makes the bundle again."""
        dynamic = [word for name in self.dynamic for word in ("--dynamic", name)]
        words = ["--stage", stage, *dynamic, *self.ends.flags, "--to", str(self.to)]
        return shlex.join(["python", "-m", "pipeline.export", str(self.run), *words])


def loaded(folder: Path) -> RunRecord:
    """Load a run's record; a byte of a folder's name that is no text, of which it holds the escape, is one again."""
    run = codec.load(folder)
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


def usable(run: RunRecord, name: str | None, able: list[str]) -> StageRecord:
    """Return the stage of that name, or the run's winner; `able` are those that a message proposes."""
    stage = named_or_winner(run, name)
    if stage is None:
        if name is None:
            raise ExportError(no_winner(able))
        raise ExportError(f"--stage {name}: no stage of this run; {nearest(name, [part.name for part in run.stages])}")
    name = stage.name
    if stage.status != "ok":
        raise ExportError(f"--stage {name}: {stage.status}: {stage.reason or stage.failure or 'no reason'}")
    check_options(stage)
    return stage


def named_or_winner(run: RunRecord, name: str | None) -> StageRecord | None:
    """Return the stage of that name, or the run's winner without a name; None if there is none."""
    if name is None:
        name = winner_of(run)
    return next((stage for stage in run.stages if stage.name == name), None)


def no_winner(usable: list[str]) -> str:
    """Return the message for a run without a winner, with the stages that `--stage` accepts."""
    others = f"; --stage takes one of: {', '.join(usable)}" if usable else ", and none of its stages can be taken"
    return f"the run names no winner{others}"


def check_options(stage: StageRecord) -> None:
    """Raise RequestError if the stage's `build` doesn't take its recorded options."""
    spec = stage.spec
    stage_options.check_options(spec.options, stage_options.signature_of(spec.target), spec.name, spec.target)


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
