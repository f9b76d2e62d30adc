"""From Hydra's composed config to a RunConfig, every value checked; what is wrong is one line."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pipeline.config.checks import NonNegativeFloat, checked, shown
from pipeline.config.data_request import OWN_IMAGES, read_data
from pipeline.config.goal_request import read_accuracy, read_goal
from pipeline.config.groups import mapping, read_group
from pipeline.config.net_request import check_net
from pipeline.config.request_error import RequestError, nearest
from pipeline.config.stage_options import BUILD, Signature, lacks, signature_of, signature_of_net
from pipeline.config.task_request import read_task
from pipeline.config.threads_request import check_threads
from pipeline.devices.kinds import is_cuda
from pipeline.inputs.targets import refusal
from pipeline.records.bundle_kinds import ExportKind
from pipeline.records.codec import STAGE_NAME
from pipeline.records.plan import BY_DEVICE, Plan
from pipeline.records.request import STAGE_FIELDS, ModelSpec, RunConfig, StageSpec
from pipeline.records.run_record import AUTOCAST, EAGER, Tolerance

REPORT_KEYS = ("gpu_hour_price", "target_images_per_second", "target_p99_ms")
# Keys of no group, and the groups.
TOP_LEVEL = ("threads", "seed", "time_inaccurate", "strict", "preset", "resume", "resume_despite", "gpu_busy")
GROUPS = ("model", "data", "task", "measure", "stage", "report", "accuracy")
KNOWN = (*GROUPS, *TOP_LEVEL, "device", "eager_beside", "objective", "subject_to")
OF_THE_RUN = frozenset({"reference", "baseline", "aa_pairs", "head_to_head", "claimed", "scratch"})
LONGEST_NAME = 64  # of a stage: a folder's, and a column's

EXPORTED = ".pt2"  # a net as torch.export writes it
EAGER_BESIDE = "fp32 beside the rest: added by the run (eager_beside=false leaves it out)"

StageFiles = Mapping[str, Mapping[str, object]]


def read(config: Mapping[str, object], device: str, files: StageFiles, launcher: str = "basic") -> RunConfig:
    """The run that a resolved config asks for, on `device` as it was found.

    Args:
        config: the composed config as plain containers.
        device: "cuda" or "cpu".
        files: those of conf/stage for the baselines, likewise, by their names.
        launcher: Hydra's; it may change what is measured, so the record keeps it.

    Raises:
        RequestError: a value isn't admitted; the line names the key and what is admitted.
    """
    group = check_keys(config)
    check_report(group["report"])
    if config["resume_despite"] and not config["resume"]:
        raise RequestError("resume_despite: name the run to go on with, too: resume=outputs/DATE/TIME")
    beside = checked("eager_beside", config["eager_beside"], bool)
    baseline, eager = (read_stage(files[name], "stage") for name in (AUTOCAST if is_cuda(device) else EAGER, EAGER))
    stages, model, data = read_stages(group["stage"]), read_model(group["model"]), read_data(group["data"])
    check_net(model, data)
    labelled = data.name in OWN_IMAGES or data.labels is not None
    task = read_task(group["task"], data)
    accuracy = read_accuracy(group["accuracy"], labelled, model.is_trained, task.name)
    price = checked("report.gpu_hour_price", group["report"].get("gpu_hour_price"), float | None)
    stages = with_eager(stages, eager) if is_cuda(device) and beside else stages
    return RunConfig(
        stages=[in_place(stage) for stage in stages] if accuracy.replace_flipped_share else stages,
        model=model,
        data=data,
        accuracy=accuracy,
        task=task,
        goal=read_goal(config["objective"], config["subject_to"], price),
        plan=read_plan(group["measure"]).on(device),
        device=device,
        launcher=launcher,
        baseline=baseline,
        eager=eager,
        **top_level(config),
    )


def for_every_device(measure: Mapping[str, object], typed: Sequence[str]) -> dict[str, object]:
    """The knobs of `measure` with what was typed for one of `BY_DEVICE` on a GPU too: it means the same everywhere.

    Args:
        measure: every knob's value.
        typed: the words of the command line, such as "measure.sampling_seconds=4".
    """
    names = {word.lstrip("+").partition("=")[0] for word in typed}
    meant = [name for name in BY_DEVICE if f"measure.{name}" in names and f"measure.gpu_{name}" not in names]
    return {**measure, **{f"gpu_{name}": measure[name] for name in meant}}


def read_plan(measure: Mapping[str, object]) -> Plan:
    """Return the measurement's knobs.

    Raises:
        RequestError: a value isn't admitted.
    """
    try:
        return read_group(Plan, "measure", measure)
    except ValueError as error:
        raise RequestError(str(error)) from None


def top_level(config: Mapping[str, object]) -> dict[str, Any]:
    """The keys of no group that a `RunConfig` has.

    Raises:
        RequestError: a value isn't admitted.
    """
    types = get_type_hints(RunConfig, include_extras=True)
    found = {key: checked(key, config[key], types[key]) for key in TOP_LEVEL}
    check_threads(found["threads"])
    return found


def in_place(stage: StageSpec) -> StageSpec:
    """The stage, whose masks are judged by the limits of `accuracy` alone."""
    reason = f"{stage.tolerance.reason}; accuracy.replace_flipped_share lifts the limit on pixels"
    return replace(stage, tolerance=replace(stage.tolerance, flipped_share=1.0, reason=reason))


def check_keys(config: Mapping[str, object], groups: Sequence[str] = GROUPS) -> dict[str, Mapping[str, object]]:
    """The groups of a config that has every key of the top level and no other, and pairs in these groups.

    Raises:
        RequestError: it hasn't.
    """
    found = {}
    for key in config:
        if key not in KNOWN:
            inside = {name: part for name in GROUPS if isinstance(part := config.get(name), Mapping)}
            homes = [f"{name}.{key}" for name, part in inside.items() if key in part]
            raise RequestError(f"{key}: no such key; {nearest(key, homes or KNOWN)}")
    for group in groups:
        remedy = f"{group}=NAME takes a file of conf/{group}, {group}.KEY=VALUE sets one knob"
        found[group] = mapping(group, config.get(group), remedy)
    if missing := [key for key in KNOWN if key not in config]:
        raise RequestError(f"{missing[0]}: not set; conf/config.yaml has its default")
    return found


def with_eager(stages: list[StageSpec], eager: StageSpec) -> list[StageSpec]:
    """The stages with eager among them, as a first rung that the run adds where nobody asked for it."""
    if any(stage.target == eager.target or stage.name == eager.name for stage in stages):
        return stages
    return [replace(eager, adds=EAGER_BESIDE), *stages]


def check_report(knobs: Mapping[str, object]) -> None:
    """Check the knobs of the report.

    Raises:
        RequestError: an unknown key, or a value that is neither null nor a finite number above 0 (a price may be 0).
    """
    for key, value in knobs.items():
        if key not in REPORT_KEYS:
            raise RequestError(f"report.{key}: no such key; {nearest(key, REPORT_KEYS)}")
        free = key == "gpu_hour_price" and value == 0
        wrong = isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf
        if value is not None and wrong and not free:
            raise RequestError(f"report.{key}={shown(value)}: expected a number above 0, or null")


def read_model(value: Mapping[str, object]) -> ModelSpec:
    """The net that is asked for.

    Raises:
        RequestError: it isn't named, or a value isn't admitted.
    """
    if value.get("file"):
        return model_of_file(value)
    if not value.get("target"):
        raise RequestError(
            "model.target: name the class of your net, or a function that makes it: model.target=my_package.MyNet"
        )
    check_target("model.target", value["target"], "my_package.MyNet")
    empty = ("checkpoint", "output", "trained")
    given = {key: None if key in empty and part == "" else part for key, part in value.items()}
    model = read_group(ModelSpec, "model", given)
    options = checked_against(signature_of_net(model.target), model.options, "model.options", model.target)
    return replace(model, options=options)


def model_of_file(value: Mapping[str, object]) -> ModelSpec:
    """A net as torch.export wrote it, which is whole.

    Raises:
        RequestError: the file isn't there, is of another kind, or something else is typed beside it.
    """
    file = checked("model.file", value["file"], str)
    for key in ("target", "options", "checkpoint"):
        if value.get(key):
            raise RequestError(f"model.{key}: model.file={file} is a whole net with its weights; leave one of them out")
    if not Path(file).is_file() or Path(file).suffix != EXPORTED:
        what = f"no such {EXPORTED} file" if not Path(file).is_file() else f"not a {EXPORTED} file"
        raise RequestError(
            f"model.file={file}: {what}; "
            "torch.export.save(torch.export.export(net.eval(), (batch,)).run_decompositions({}), FILE) writes one"
        )
    return read_group(ModelSpec, "model", {**value, "target": "", "options": {}, "checkpoint": None})


def check_target(key: str, target: object, example: str) -> None:
    """Raise if a target is no dotted name.

    Raises:
        RequestError: it isn't.
    """
    if isinstance(target, str) and (why := refusal(target)):
        raise RequestError(f"{key}={target}: {why}; name {example}")


def read_stages(value: Mapping[str, object]) -> list[StageSpec]:
    """The stages that are asked for: the rungs of a ladder, or one.

    Raises:
        RequestError: two have one name, or one of them is wrong.
    """
    if "rungs" not in value:
        return [read_stage(value, "stage")]
    if other := [key for key in value if key != "rungs"]:
        raise RequestError(f"stage.{other[0]}: a ladder has rungs alone; name one of them: stage.rungs.NAME.{other[0]}")
    rungs = mapping("stage.rungs", value["rungs"])
    if not rungs:
        raise RequestError("stage.rungs: no rung is left; name one, such as stage=eager")
    specs = [read_stage(mapping(f"stage.rungs.{key}", rung), f"stage.rungs.{key}") for key, rung in rungs.items()]
    names = [spec.name for spec in specs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RequestError(f"stage: two rungs are called {twice[0]!r}; give each a name of its own")
    return specs


def read_stage(value: Mapping[str, object], group: str) -> StageSpec:
    """A stage from its YAML; `group` stands before its keys in what the user types.

    Raises:
        RequestError: the name can't be a folder's, something is missing, or a value isn't admitted.
    """
    name = stage_name(str(value.get("name", "")), group)
    for key in ("target", "tolerance"):
        if not value.get(key):
            raise RequestError(f"stage {name}: its YAML has no {key!r}; conf/stage/eager.yaml shows one")
    check_target(f"{group}.target", value["target"], "pipeline.stages.compile, or a module of yours")
    devices = value.get("devices", ["cuda", "cpu"])
    options = {key: part for key, part in value.items() if key not in STAGE_FIELDS}
    texts = {key: checked(f"{group}.{key}", value.get(key, ""), str) for key in ("summary", "adds", "unavailable")}
    target = checked(f"{group}.target", value["target"], str)
    if lacks(target, BUILD):
        raise RequestError(
            f"{group}.target={target}: the module has no function {BUILD}; pipeline.stages.eager has one"
        )
    return StageSpec(
        name=name,
        target=target,
        devices=checked(f"{group}.devices", devices, list[Literal["cuda", "cpu"]]),
        legacy=checked(f"{group}.legacy", value.get("legacy", False), bool),
        tolerance=_tolerance(name, group, mapping(f"{group}.tolerance", value["tolerance"])),
        options=checked_options(options, target, group),
        exports=checked(f"{group}.exports", value.get("exports"), ExportKind | None),
        any_size=checked(f"{group}.any_size", value.get("any_size", False), bool),
        packages=checked(f"{group}.packages", value.get("packages", []), list[str]),
        **texts,
    )


def stage_name(name: str, group: str) -> str:
    """The name, which is also that of the stage's folder within the run's.

    Raises:
        RequestError: it can't be a folder's, or the run has a file or folder of that name.
    """
    if not STAGE_NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        wanted = f"at most {LONGEST_NAME} letters, digits, '_', '-' and '.'"
        raise RequestError(f"{group}.name={shown(name)!r}: a stage's name is a folder's: {wanted}")
    if name.lower() in OF_THE_RUN or re.search(r"\.(json|yaml|html|md|csv|py|txt|log)$", name.lower()):
        raise RequestError(f"{group}.name={name}: the run has a file or folder of that name; try my_{name}")
    return name


def checked_options(options: Mapping[str, object], target: str, group: str) -> dict[str, object]:
    """A stage's options, checked against the annotations of `build` in its module, so far as its source shows them.

    Raises:
        RequestError: `build` takes no such option, or not this value, or one that it needs isn't set.
    """
    return checked_against(signature_of(target), options, group, target)


def checked_against(
    signature: Signature | None, options: Mapping[str, object], group: str, target: str
) -> dict[str, object]:
    """Options, checked against a signature; as they are where no source shows one.

    Raises:
        RequestError: the target takes no such option, or not this value, or one that it needs isn't set.
    """
    if signature is None:
        return dict(options)
    for key in options:
        if key not in signature.options and not signature.takes_any:
            remedy = nearest(key, signature.options) if signature.options else "it takes none"
            raise RequestError(f"{group}.{key}: no option of {target}; {remedy}")
    if missing := [key for key in signature.required if key not in options]:
        raise RequestError(f"{group}.{missing[0]}: {target} needs it, and nothing sets it")
    return {key: checked(f"{group}.{key}", part, signature.options.get(key, Any)) for key, part in options.items()}


def _tolerance(stage: str, group: str, value: Mapping[str, object]) -> Tolerance:
    """A stage's tolerance from its YAML, with every field and a reason."""
    names = [part.name for part in fields(Tolerance)]
    for key in value:
        if key not in names:
            raise RequestError(f"{group}.tolerance.{key}: no such key; {nearest(key, names)}")
    if missing := [name for name in names if name not in value]:
        raise RequestError(f"stage {stage}: tolerance has no {missing[0]!r}; it takes {', '.join(names)}")
    errors = [checked(f"{group}.tolerance.{key}", value[key], NonNegativeFloat) for key in names[:2]]
    if errors[0] >= 1:
        raise RequestError(f"{group}.tolerance.{names[0]}={shown(errors[0])}: zeros are 1 off; expected less than 1")
    return Tolerance(float(errors[0]), float(errors[1]), str(value["reason"]))
