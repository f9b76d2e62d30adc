"""What makes masks: a stage of a run, built again as the run built it."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.config.data_request import words_for_kind
from pipeline.config.request_error import RequestError, nearest
from pipeline.devices.choice import choose_device
from pipeline.devices.discover import accelerators
from pipeline.devices.host import memory_bytes
from pipeline.export.as_measured import check_batch, check_net, data_has_changed
from pipeline.export.recorded_choice import check_options, check_task, named_or_winner, no_winner
from pipeline.export.recorded_stage import check_weights
from pipeline.inputs.datasets import window
from pipeline.inputs.input_contract import InputContract
from pipeline.records import codec
from pipeline.records.content_digest import code_digest
from pipeline.records.data_words import Words, words_for
from pipeline.records.plan import Plan
from pipeline.records.request import DataSpec, Job, ModelSpec, StageSpec
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.stages.api import Skip, StageError

CHOOSABLE = ("ok", "inaccurate")  # statuses of stages that can be built


@dataclass(frozen=True)
class Predictor:
    """A net that is ready to answer.

    Attributes:
        name: of the stage.
        run: takes [batch, channels, height, width], fp32, normalised, and gives logits [batch, classes, height, width],
            volumes with a depth before the height; the next call may write over them.
        shape: batch, channels, height and width that it takes, of volumes with a depth before.
        device: where.
        contract: how an image becomes its input.
        kind: the type of the images that it was measured on; None where nobody knows.
        images_in: it takes images [batch, height, width, channels], uint8, in place of a normalised batch.
        classes_out: it gives classes [batch, height, width] in place of logits.
        gives_values: what it gives are values of volumes, of which no classes are made.
    """

    name: str
    run: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    device: torch.device
    contract: InputContract
    kind: np.dtype | None
    images_in: bool = False
    classes_out: bool = False
    gives_values: bool = False

    @property
    def words(self) -> Words:
        """What its data are called: images, or volumes."""
        return words_for(len(self.shape) - 2)


@dataclass(frozen=True)
class Planned:
    """What is known of a predictor before its net is built: enough to see whether masks that are there are its own.

    Attributes:
        name: of the stage.
        words: for its data.
        any_size: whether it takes other heights and widths, too.
        made_of: what its answers depend on, as JSON values.
        notes: what a user must know of it.
        build: makes it ready. Raises RequestError where it can't be built, or loaded, here.
        classes_out: it gives classes in place of logits.
        gives_values: what it gives are values of volumes.
        sides: of its windows; None where only the net that is built tells them.
        sides_stay: where they are unknown: whether they are those of the masks that it made before.
    """

    name: str
    words: Words
    any_size: bool
    made_of: dict[str, Any]
    notes: list[str]
    build: Callable[[], Predictor]
    classes_out: bool = False
    gives_values: bool = False
    sides: tuple[int, ...] | None = None
    sides_stay: bool = True


@dataclass(frozen=True)
class Wanted:
    """What the user chose of a run or a bundle; None takes the run's own.

    Attributes:
        stage: by its name; None takes the winner.
        device: "auto", "cpu" or "cuda".
        batch: images a call.
    """

    stage: str | None = None
    device: str | None = None
    batch: int | None = None


def identity(made_of: dict[str, object]) -> str:
    """SHA-256 of JSON values."""
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def of_run(folder: Path, wanted: Wanted, scratch: Path) -> Planned:
    """A stage of a run, to be built as the run's worker built it: its options, the run's images, its calibration.

    Args:
        folder: of the run.
        wanted: the stage, device and batch.
        scratch: a folder for what building leaves.

    Raises:
        RecordError: the folder holds no run's record.
        RequestError: there is no such stage.
        ExportError: the weights are others than the run's.
        InputError: the device isn't here, or the weights' file is gone.
    """
    run = codec.load(folder)
    check_task(run)
    stage = chosen(run, wanted.stage)
    same_data = not data_has_changed(run)
    notes = check_unchanged(run, stage, same_data)
    job, gives_values = job_of(run, stage, wanted, scratch), not run.settings.task.has_masks
    check_batch(job.data.batch_size, sample_of(run), memory_bytes())
    return Planned(
        name=stage.name,
        words=words_for_kind(run.settings.data.name),
        any_size=stage.any_size,
        made_of=made_of(run, job),
        notes=notes,
        build=partial(built, job, folder, run),
        gives_values=gives_values,
        sides_stay=same_data,
    )


def built(job: Job, folder: Path, run: RunRecord) -> Predictor:
    """The job's stage, of a run in a folder, ready.

    Raises:
        RequestError: it can't be built here, or its net isn't the one that was measured.
        InputError: the net, its weights or the run's images are not what they should be.
    """
    from pipeline.worker.run_stage import prepare  # and so compilers, which masks that are there need not wait for

    bench = prepare(job)
    check_net(folder, run, bench.workload.model, bench.inputs[0])
    layout = next((stage.net_layout for stage in run.stages if stage.name == job.stage.name), None)
    bench.workload = bench.workload.taken_in(layout)
    try:
        bench.build()
    except (Skip, StageError) as error:
        raise RequestError(f"{job.stage.name}: it can't be built here: {error}") from error
    work = bench.workload
    kind = None if work.images is None else work.images.dtype
    ready, gives_values = bench.runner.run, not run.settings.task.has_masks
    return Predictor(job.stage.name, ready, work.shape, work.device, work.contract, kind, gives_values=gives_values)


def sample_of(run: RunRecord) -> list[int]:
    """Channels and sides of a window of the run's; without sides where images keep a size of their own."""
    data = run.settings.data
    sides = window(data.name, data.image_size, data.depth)
    return [data.contract.channels, *([] if sides is None else [sides, sides] if isinstance(sides, int) else sides)]


def chosen(run: RunRecord, name: str | None) -> StageRecord:
    """The stage of that name, or the winner.

    Raises:
        RequestError: there is none, or it has never answered.
    """
    usable = [stage.name for stage in run.stages if stage.status in CHOOSABLE]
    stage = named_or_winner(run, name)
    if stage is None:
        if name is None:
            raise RequestError(no_winner(usable))
        raise RequestError(f"--stage {name}: the run has no such stage; {nearest(name, usable)}")
    if name is not None and stage.status not in CHOOSABLE:
        others = f"; {nearest(name, usable)}" if usable else ""
        raise RequestError(f"--stage {name}: {stage.status} in this run: {stage.reason or 'no reason'}{others}")
    check_options(stage)
    return stage


def check_unchanged(run: RunRecord, stage: StageRecord, same_data: bool) -> list[str]:
    """What has changed since the run, or must be known of it, a line each.

    Raises:
        ExportError: the weights are others.
        CheckpointError: their file is gone.
    """
    notes = []
    check_weights(run)
    if not run.settings.model.trained:
        answers = "masks" if run.settings.task.has_masks else "answers"
        notes.append(f"the net has random weights: its {answers} mean nothing")
    if stage.status == "inaccurate":
        notes.append(f"{stage.name} is inaccurate: {stage.reason}")
    if run.code_sha256 != code_digest():
        notes.append("this program's sources have changed since the run")
    if not same_data:
        notes.append(f"the run's {run.words.samples} have changed: what is calibrated on them may answer otherwise")
    return notes


def job_of(run: RunRecord, stage: StageRecord, wanted: Wanted, scratch: Path) -> Job:
    """The job by which the run's worker built the stage, on the device and with the batch that are wanted.

    Raises:
        RequestError: the run ended before it had described its machine.
        DeviceError: the device isn't here.
    """
    if run.environment is None:
        raise RequestError("the run ended before its first worker had answered; nothing can be built from it")
    model, data, device = run.settings.model, run.settings.data, run.environment.device
    device = choose_device(wanted.device or device, accelerators(), "--device ")
    return Job(
        role="stage",
        stage=StageSpec(
            stage.name, stage.target, stage.summary, stage.adds, [device], "", stage.legacy, stage.tolerance,
            stage.options,
        ),
        model=ModelSpec(
            model.name, model.target, model.options, model.checkpoint, model.output, model.file, model.said_trained
        ),
        data=DataSpec(
            name=data.name, path=data.path, labels=data.labels, size=data.image_size,
            batch_size=wanted.batch or run.batch_size, batches=int(run.config["data"]["batches"]),
            contract=data.contract, label_rules=data.label_rules, depth=data.depth,
        ),
        plan=Plan(),
        device=device,
        threads=run.config.get("threads") if device == run.environment.device else None,
        seed=int(run.config.get("seed", 0)),
        time_inaccurate=False,
        launcher="basic",
        folder=str(scratch),
        reference="",
    )  # fmt: skip


def made_of(run: RunRecord, job: Job) -> dict[str, object]:
    """What the answers of a run's stage depend on."""
    spec, model = job.stage, replace(job.model, checkpoint=None)
    return {
        "stage": spec.name,
        "target": spec.target,
        "options": spec.options,
        "net": codec.to_json(model),
        "weights_sha256": run.reference.weights_sha256 if run.reference else None,
        "contract": codec.to_json(job.data.contract),
        "batch": job.data.batch_size,
        "device": job.device,
        "threads": job.threads,
        "seed": job.seed,
        "run": run.started_at,
        "code_sha256": code_digest(),
        "torch": torch.__version__,
    }
