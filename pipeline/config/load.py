"""From Hydra's composed config to a RunConfig, every value checked; what is wrong is one line."""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

from pipeline.config.checks import NonNegativeFloat, checked, shown
from pipeline.config.plan import Plan
from pipeline.config.request_error import RequestError, nearest
from pipeline.config.schema import STAGE_FIELDS, DataSpec, ModelSpec, RunConfig, StageSpec
from pipeline.config.stage_options import signature_of
from pipeline.devices.kinds import is_cuda
from pipeline.records.run_record import AUTOCAST, EAGER, Tolerance

REPORT_KEYS = ("gpu_hour_price", "target_images_per_second", "target_p99_ms")
# Keys of no group.
TOP_LEVEL = ("threads", "seed", "time_inaccurate", "strict", "preset", "resume", "resume_despite", "gpu_busy")

EAGER_BESIDE = "fp32 beside the rest: added by the run (eager_beside=false leaves it out)"

Spec = TypeVar("Spec")


StageFiles = Mapping[str, Mapping[str, Any]]


def read(config: Mapping[str, Any], device: str, files: StageFiles, launcher: str = "basic") -> RunConfig:
    """The run that a resolved config asks for, on `device` as it was found.

    Args:
        config: the composed config as plain containers.
        device: "cuda" or "cpu".
        files: those of conf/stage for the baselines, likewise, by their names.
        launcher: Hydra's; it may change what is measured, so the record keeps it.

    Raises:
        RequestError: a value isn't admitted; the line names the key and what is admitted.
    """
    check_report(config.get("report") or {})
    if config["resume_despite"] and not config["resume"]:
        raise RequestError("resume_despite: name the run to go on with, too: resume=outputs/DATE/TIME")
    types = get_type_hints(RunConfig, include_extras=True)
    beside = checked("eager_beside", config["eager_beside"], bool)
    baseline, eager = (read_stage(files[name], "stage") for name in (AUTOCAST if is_cuda(device) else EAGER, EAGER))
    stages = read_stages(config["stage"])
    return RunConfig(
        stages=with_eager(stages, eager) if is_cuda(device) and beside else stages,
        model=read_model(config["model"]),
        data=read_data(config["data"]),
        plan=read_group(Plan, "measure", config["measure"]).on(device),
        device=device,
        launcher=launcher,
        baseline=baseline,
        eager=eager,
        **{key: checked(key, config[key], types[key]) for key in TOP_LEVEL},
    )


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


def read_group(spec: type[Spec], group: str, value: Mapping[str, object]) -> Spec:
    """A dataclass from a group of the config, each value checked against its field's annotation.

    Raises:
        RequestError: an unknown key, a missing one, or a value that isn't admitted.
    """
    types = get_type_hints(spec, include_extras=True)
    for key in value:
        if key not in types:
            raise RequestError(f"{group}.{key}: no such key; {nearest(key, sorted(types))}")
    required = [part.name for part in fields(spec) if part.default is MISSING]  # type: ignore[arg-type]
    if missing := [key for key in required if key not in value]:
        raise RequestError(f"{group}.{missing[0]}: not set; {group} takes {', '.join(required)}")
    return spec(**{key: checked(f"{group}.{key}", part, types[key]) for key, part in value.items()})


def read_model(value: Mapping[str, Any]) -> ModelSpec:
    """The net that is asked for.

    Raises:
        RequestError: it isn't named, or a value isn't admitted.
    """
    if not value["target"]:
        raise RequestError("model.target: name the class of your net, such as model.target=my_package.MyNet")
    given = {**value, "options": value["options"] or {}, "checkpoint": value["checkpoint"] or None}
    return read_group(ModelSpec, "model", given)


def read_data(value: Mapping[str, Any]) -> DataSpec:
    """The images that are asked for.

    Raises:
        RequestError: a folder that isn't there, or a value that isn't admitted.
    """
    data = read_group(DataSpec, "data", {**value, "path": value["path"] or None, "labels": value["labels"] or None})
    if data.name == "folder" and not data.path:
        raise RequestError("data.path: name the folder of your images, such as data.path=images/")
    for key, folder in (("data.path", data.path), ("data.labels", data.labels)):
        if folder and not Path(folder).is_dir():
            raise RequestError(f"{key}={folder}: no such folder{_neighbour(Path(folder))}")
    return data


def _neighbour(path: Path) -> str:
    """A clause that names the folder beside `path` that is most like it; empty where none is."""
    beside = [part.name for part in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.5)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


def read_stages(value: Mapping[str, Any]) -> list[StageSpec]:
    """The stages that are asked for: the rungs of a ladder, or one.

    Raises:
        RequestError: two have one name, or one of them is wrong.
    """
    if "rungs" not in value:
        return [read_stage(value, "stage")]
    specs = [read_stage(rung, f"stage.rungs.{key}") for key, rung in value["rungs"].items()]
    names = [spec.name for spec in specs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RequestError(f"stage: two rungs are called {twice[0]!r}; give each a name of its own")
    return specs


def read_stage(value: Mapping[str, Any], group: str) -> StageSpec:
    """A stage from its YAML; `group` stands before its keys in what the user types.

    Raises:
        RequestError: the name can't be a folder's, something is missing, or a value isn't admitted.
    """
    name = str(value.get("name", ""))
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise RequestError(f"{group}.name={name!r}: a stage's name is a folder's: letters, digits, '_', '-' and '.'")
    for key in ("target", "tolerance"):
        if not value.get(key):
            raise RequestError(f"stage {name}: its YAML has no {key!r}; conf/stage/eager.yaml shows one")
    devices = value.get("devices", ["cuda", "cpu"])
    options = {key: part for key, part in value.items() if key not in STAGE_FIELDS}
    return StageSpec(
        name=name,
        target=checked(f"{group}.target", value["target"], str),
        summary=str(value.get("summary", "")),
        adds=str(value.get("adds", "")),
        devices=checked(f"{group}.devices", devices, list[Literal["cuda", "cpu"]]),
        unavailable=str(value.get("unavailable", "")),
        legacy=checked(f"{group}.legacy", value.get("legacy", False), bool),
        tolerance=_tolerance(name, group, value["tolerance"]),
        options=checked_options(options, str(value["target"]), group),
    )


def checked_options(options: Mapping[str, object], target: str, group: str) -> dict[str, Any]:
    """A stage's options, checked against the annotations of `build` in its module, so far as its source shows them.

    Raises:
        RequestError: `build` takes no such option, or not this value, or one that it needs isn't set.
    """
    signature = signature_of(target)
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
    if missing := [name for name in names if name not in value]:
        raise RequestError(f"stage {stage}: tolerance has no {missing[0]!r}; it takes {', '.join(names)}")
    errors = [checked(f"{group}.tolerance.{key}", value[key], NonNegativeFloat) for key in names[:2]]
    return Tolerance(float(errors[0]), float(errors[1]), str(value["reason"]))
