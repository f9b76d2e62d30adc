"""From Hydra's composed configuration to a RunConfig: conversion by msgspec, then the checks across keys."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from pipeline.config.conversion import converted
from pipeline.config.data_request import OWN_IMAGES, DataKnobs, read_data
from pipeline.config.goal_request import check_task, read_accuracy, read_goal
from pipeline.config.model_request import check_net, check_target, read_model
from pipeline.config.request_error import RequestError, shown
from pipeline.config.stage_options import BUILD, check_options, lacks_build, signature_of
from pipeline.devices.host import cpu_quota, processors, seen_processors
from pipeline.errors import plural
from pipeline.records.codec import STAGE_NAME
from pipeline.records.plan import Plan
from pipeline.records.request import STAGE_FIELDS, RunConfig, Settings, StageSpec
from pipeline.records.run_record import AUTOCAST, EAGER, RunWarning

OF_THE_RUN = frozenset({"reference", "baseline", "aa_pairs", "head_to_head", "claimed", "scratch"})
LONGEST_NAME = 64  # of a stage: a folder's, and a column's
EAGER_BESIDE = "fp32 beside the rest: added by the run (eager_beside=false leaves it out)"
# Of a stage whose YAML does not say.
STAGE_DEFAULTS = {"summary": "", "adds": "", "unavailable": "", "devices": ["cuda", "cpu"], "legacy": False}

StageFiles = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, kw_only=True)
class Request(Settings):
    """The composed configuration; conf/config.yaml documents the keys."""

    model: dict[str, Any]
    data: DataKnobs
    measure: Plan
    stage: dict[str, Any]
    accuracy: dict[str, Any]
    objective: Any
    subject_to: Any
    device: str
    eager_beside: bool


def read(config: Mapping[str, object], device: str, files: StageFiles, launcher: str = "basic") -> RunConfig:
    """Return the run that a composed configuration asks for."""
    request = converted(config, Request)
    if request.resume_despite and not request.resume:
        raise RequestError("resume_despite: name the run to go on with, too: resume=outputs/DATE/TIME")
    check_threads(request.threads)
    baseline, eager = (read_stage(files[name], "stage") for name in (AUTOCAST if device == "cuda" else EAGER, EAGER))
    stages, model, data = read_stages(request.stage), read_model(request.model), read_data(request.data)
    check_net(model, data)
    check_task(request.task, data)
    labelled = data.name in OWN_IMAGES or data.labels is not None
    accuracy = read_accuracy(request.accuracy, labelled, model.is_trained, request.task.name)
    stages = with_eager(stages, eager) if device == "cuda" and request.eager_beside else stages
    return RunConfig(
        stages=[in_place(stage) for stage in stages] if accuracy.replace_flipped_share else stages,
        model=model,
        data=data,
        plan=request.measure.on(device),
        ladder="rungs" in request.stage,
        device=device,
        launcher=launcher,
        baseline=baseline,
        eager=eager,
        accuracy=accuracy,
        goal=read_goal(request.objective, request.subject_to, request.report.gpu_hour_price),
        **{key.name: getattr(request, key.name) for key in fields(Settings)},
    )


def in_place(stage: StageSpec) -> StageSpec:
    """Return the stage without a limit on pixels: the limits of `accuracy` decide alone."""
    reason = f"{stage.tolerance.reason}; accuracy.replace_flipped_share lifts the limit on pixels"
    return replace(stage, tolerance=replace(stage.tolerance, flipped_share=1.0, reason=reason))


def with_eager(stages: list[StageSpec], eager: StageSpec) -> list[StageSpec]:
    """Return the stages with eager among them, as a first rung if it was not requested."""
    if any(stage.target == eager.target or stage.name == eager.name for stage in stages):
        return stages
    return [replace(eager, adds=EAGER_BESIDE), *stages]


def read_stages(value: Mapping[str, object]) -> list[StageSpec]:
    """Return the requested stages: the rungs of a ladder, or one."""
    if "rungs" not in value:
        return [read_stage(value, "stage")]
    if other := [key for key in value if key != "rungs"]:
        raise RequestError(f"stage.{other[0]}: a ladder has rungs only; name one of them: stage.rungs.NAME.{other[0]}")
    rungs = converted(value["rungs"], dict[str, dict[str, Any]], "stage.rungs")
    if not rungs:
        raise RequestError("stage.rungs: no rung is left; name one, such as stage=eager")
    specs = [read_stage(rung, f"stage.rungs.{key}") for key, rung in rungs.items()]
    names = [spec.name for spec in specs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RequestError(f"stage: two rungs are called {twice[0]!r}; give each a name of its own")
    return specs


def read_stage(value: Mapping[str, object], group: str) -> StageSpec:
    """Return a stage from its YAML, of the key `group`; keys that are no fields are options of its `build`."""
    options = {key: part for key, part in value.items() if key not in STAGE_FIELDS}
    fields = {key: part for key, part in value.items() if key in STAGE_FIELDS}
    stage = converted({**STAGE_DEFAULTS, **fields, "options": options}, StageSpec, group)
    if not STAGE_NAME.fullmatch(stage.name) or len(stage.name) > LONGEST_NAME:
        wanted = f"at most {LONGEST_NAME} letters, digits, '_', '-' and '.'"
        raise RequestError(f"{group}.name={shown(stage.name)!r}: a stage's name is a folder's: {wanted}")
    if stage.name.lower() in OF_THE_RUN or re.search(r"\.(json|yaml|html|md|csv|py|txt|log)$", stage.name.lower()):
        raise RequestError(f"{group}.name={stage.name}: the run has a file or folder of that name; try my_{stage.name}")
    check_target(f"{group}.target", stage.target, "pipeline.stages.compile, or a module of yours")
    if lacks_build(stage.target):
        raise RequestError(f"{group}.target={stage.target}: the module has no function {BUILD}")
    if not stage.tolerance.relative_l2 < 1:
        raise RequestError(f"{group}.tolerance.relative_l2={stage.tolerance.relative_l2}: expected < 1, as of zeros")
    check_options(options, signature_of(stage.target), group, stage.target)
    return stage


def check_threads(threads: int | None) -> None:
    """Raise RequestError if there are more threads than processors: they would wait for each other."""
    if threads is not None and threads > (most := processors()):
        found = f"{plural(most, 'processor')}{of_a_quota()}"
        raise RequestError(
            f"threads={threads}: this program may use {found}; expected at most {most}, or null for torch's own choice"
        )


def of_a_quota() -> str:
    """Return a clause on a container's CPU quota, if that is what limits the processors; else an empty text."""
    quota = cpu_quota()
    there = seen_processors()
    return f" of {there}, by its container's CPU quota of {quota:.4g}" if quota and processors() < there else ""


def quota_warning() -> RunWarning | None:
    """Return the warning of a run under a CPU quota; None without a quota."""
    if not (said := of_a_quota()):
        return None
    return RunWarning(
        "processor quota",
        f"this program may use {plural(processors(), 'processor')}{said}, and takes as many threads",
        "a quota pauses all threads once it is used up, which lengthens single calls; assign processors instead "
        "(docker --cpuset-cpus, taskset)",
    )
