"""Which stage of a finished run is taken out of it, the one that was named or the winner, by the record alone."""

from pipeline.analysis.summary import winner_of
from pipeline.config import stage_options
from pipeline.config.data_request import TENSORS, VOLUME
from pipeline.config.request_error import RequestError
from pipeline.records.run_record import RunRecord, StageRecord


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
