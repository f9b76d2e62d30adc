"""The predictor of a run: one of its stages, built again as the run built it."""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from pipeline.config.data_request import words_for_kind
from pipeline.config.request_error import RequestError
from pipeline.devices.accelerators import accelerators, choose_device
from pipeline.devices.host import memory_bytes
from pipeline.export.recorded_stage import check_weights, data_has_changed, notes_of_weights, prepared
from pipeline.export.request import usable
from pipeline.predict.sources import Planned, Predictor, check_batch
from pipeline.records import codec
from pipeline.records.disk import code_digest
from pipeline.records.request import REFERENCE_FIRST, Job
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.stages.api import Skip, StageError

CHOOSABLE = ("ok", "inaccurate")  # statuses of stages that can be built


def of_run(run: RunRecord, asked: argparse.Namespace, scratch: Path) -> Planned:
    """Plan a stage of a run, which is built as the run's worker built it: options, images, calibration."""
    able = [stage.name for stage in run.stages if stage.status in CHOOSABLE]
    stage = usable(run, asked.stage, able, CHOOSABLE)
    other_data = data_has_changed(run)
    notes = check_unchanged(run, stage, other_data)
    job = job_of(run, stage, asked, scratch)
    sides, classes_out = run.config.data.sides, stage.spec.options.get("classes_out")
    check_batch(job.data.batch_size, [run.config.data.contract.channels, *sides], memory_bytes())
    built_by = {"stage": stage.spec.name, "target": stage.spec.target, "options": stage.spec.options}
    built_on = {"batch": job.data.batch_size, "device": job.device, "threads": job.threads, "seed": job.seed}
    measured = {"run": run.started_at, "code_sha256": code_digest(), "torch": str(torch.__version__)}
    return Planned(
        name=stage.name,
        words=words_for_kind(run.config.data.name),
        any_size=stage.spec.any_size,
        made_of={
            **built_by | built_on | measured,
            "net": codec.to_json(replace(job.model, checkpoint=None)),
            "weights_sha256": run.reference.weights_sha256 if run.reference else None,
            "contract": codec.to_json(job.data.contract),
        },
        notes=notes,
        build=partial(built, job, asked.run, run, other_data),
        gives="values" if not run.config.task.has_masks else "classes" if classes_out else "logits",
        sides=sides or None,
        labels=run.config.data.label_rules,
        axes=run.config.data.contract.axes,
    )


def built(job: Job, folder: Path, run: RunRecord, other_data: bool) -> Predictor:
    """Build the job's stage."""
    from pipeline.worker.reference import load_first  # imports what finished masks need not wait for

    bench = prepared(folder, run, job, other_data)
    try:
        bench.build()
    except (Skip, StageError) as error:
        raise RequestError(f"{job.stage.name}: it can't be built here: {error}") from error
    work = bench.workload
    kind = None if work.images is None else work.images.dtype
    first = load_first(folder / REFERENCE_FIRST)
    classes = None if first is None or not run.config.task.has_masks else max(2, len(first))
    images_in = bench.runner.ends.before is not None
    return Predictor(
        job.stage.name, bench.runner.run, work.shape, work.device, work.contract, kind, images_in, classes=classes
    )


def check_unchanged(run: RunRecord, stage: StageRecord, other_data: bool) -> list[str]:
    """Return notes about what has changed since the run; raise if the weights have."""
    check_weights(run)
    notes = notes_of_weights(run)
    if stage.status == "inaccurate":
        notes.append(f"{stage.name} is inaccurate: {stage.reason}")
    if run.code_sha256 != code_digest():
        notes.append("this program's sources have changed since the run")
    if other_data:
        notes.append(f"the run's {run.words.samples} have changed: what is calibrated on them may answer otherwise")
    return notes


def job_of(run: RunRecord, stage: StageRecord, asked: argparse.Namespace, scratch: Path) -> Job:
    """Return the job of the run's worker, with the device and the batch that the user chose."""
    if run.environment is None:
        raise RequestError("the run ended before its first worker had answered; nothing can be built from it")
    measured = run.environment.device
    device = choose_device(asked.device or measured, accelerators(), "--device ")
    job = run.config.job(stage.spec, "stage", scratch)
    data = replace(job.data, batch_size=asked.batch or job.data.batch_size)
    threads = job.threads if device == measured else None
    return replace(job, data=data, device=device, threads=threads, folder=str(scratch), reference="")
