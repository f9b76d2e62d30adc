"""What is asked of `python -m pipeline.export`, and whether the run can give it; free of torch."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.analysis.summary import winner_of
from pipeline.config import stage_options
from pipeline.config.data_request import TENSORS, VOLUME
from pipeline.config.request_error import RequestError, nearest
from pipeline.export.contract import Dynamic
from pipeline.records import codec
from pipeline.records.run_record import RunRecord, StageRecord


class ExportError(Exception):
    """What stands in the way of a bundle; one line."""


@dataclass(frozen=True)
class Ends:
    """Which ends of the path from an image to its mask lie in the graph.

    Attributes:
        images_in: it takes images as their files hold them, uint8, and normalises them.
        classes_out: it gives the class of every pixel.
    """

    images_in: bool = False
    classes_out: bool = False

    @property
    def flags(self) -> list[str]:
        """The words of the command line that ask for them."""
        return ["--uint8-in"] * self.images_in + ["--classes-out"] * self.classes_out


@dataclass(frozen=True)
class Asked:
    """What was typed.

    Attributes:
        run: the run's folder.
        to: the bundle's, which must not be there.
        stage: its name; None for the run's winner.
        dynamic: the axes of which other lengths are to be taken.
        ends: of the path from an image to its mask, that are to lie in the graph.
    """

    run: Path
    to: Path
    stage: str | None = None
    dynamic: tuple[Dynamic, ...] = ()
    ends: Ends = field(default_factory=Ends)

    def command(self, stage: str) -> str:
        """The command that makes the bundle again."""
        dynamic = [word for name in self.dynamic for word in ("--dynamic", name)]
        words = ["--stage", stage, *dynamic, *self.ends.flags, "--to", str(self.to)]
        return shlex.join(["python", "-m", "pipeline.export", str(self.run), *words])


def recorded(asked: Asked) -> tuple[RunRecord, StageRecord]:
    """The run, and the stage of it that is to leave it.

    Raises:
        ExportError, RecordError, RequestError: the record tells that it can't, or the bundle is there already.
    """
    run = codec.load(asked.run)
    if asked.to.exists():
        raise ExportError(f"--to {asked.to}: is there already; name a new folder")
    return run, chosen(run, asked.stage)


def chosen(run: RunRecord, name: str | None) -> StageRecord:
    """The stage of that name, or the run's winner.

    Raises:
        ExportError: there is none, it wasn't right, or it has no form outside this project.
    """
    stage = named_or_winner(run, name)
    able = [part.name for part in run.stages if part.spec.exports and part.status == "ok"]
    if stage is None:
        if name is None:
            raise ExportError(no_winner(able))
        raise ExportError(f"--stage {name}: no stage of this run; {nearest(name, [part.name for part in run.stages])}")
    name = stage.name
    if stage.status != "ok":
        raise ExportError(f"--stage {name}: {stage.status}: {stage.reason or stage.failure or 'no reason'}")
    check_options(stage)
    if not stage.spec.exports:
        raise ExportError(
            f"--stage {name}: {stage.spec.target} has no form outside this project; {nearest(name, able)}"
        )
    return stage


def named_or_winner(run: RunRecord, name: str | None) -> StageRecord | None:
    """The stage of that name, or without one the run's winner; None where there is none."""
    if name is None:
        name = winner_of(run)
    return next((stage for stage in run.stages if stage.name == name), None)


def no_winner(usable: list[str]) -> str:
    """What is said of a run that names none: the stages that can be named in its place."""
    others = f"; --stage takes one of: {', '.join(usable)}" if usable else ", and none of its stages can be taken"
    return f"the run names no winner{others}"


def check_options(stage: StageRecord) -> None:
    """That the stage's recorded options are such as its `build` takes.

    Raises:
        RequestError: one isn't; the line names it.
    """
    spec = stage.spec
    stage_options.check_options(spec.options, stage_options.signature_of(spec.target), spec.name, spec.target)


def check_task(run: RunRecord) -> None:
    """That the run's net makes masks of images or volumes, or values of volumes.

    Raises:
        RequestError: it takes or gives something else.
    """
    config = run.config
    of_values = config.task.name == "regression" and config.data.name == VOLUME
    if not config.task.has_masks and not of_values:
        raise RequestError(
            f"predict makes masks, and this run's net answers with none: task={config.task.name}; "
            f"values are written of task=regression with data={VOLUME}"
        )
    if config.data.name == TENSORS:
        raise RequestError(
            f"predict makes masks of images and volumes, and this run's net takes data={TENSORS}; "
            "python -m pipeline.export makes a bundle of it"
        )
