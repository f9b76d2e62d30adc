"""The question as the user asked it: Hydra's config checked and turned into plain dataclasses. Imports no torch."""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pipeline.config.plan import Plan
from pipeline.config.request_error import RequestError, nearest
from pipeline.records.run_record import Tolerance

BASELINE = "eager"
REFERENCE_LOGITS = Path("reference", "logits.safetensors")  # within a run's folder
SCRATCH = "scratch"  # within a stage's folder: compilers' caches, deleted at the end of the run
REPORT_KEYS = ("gpu_hour_price", "target_images_per_second", "target_p99_ms")
STAGE_FIELDS = ("name", "target", "summary", "adds", "devices", "unavailable", "legacy", "tolerance", "choices")


@dataclass(frozen=True)
class StageSpec:
    """A file of conf/stage: what it runs, on which devices, and how far its answer may be from fp32."""

    name: str
    target: str  # the module whose `build` makes the stage
    summary: str
    adds: str
    devices: list[str]
    unavailable: str  # why it has no form on the devices that aren't listed
    legacy: bool
    tolerance: Tolerance
    options: dict[str, Any]  # keyword arguments of `build`


@dataclass(frozen=True)
class ModelSpec:
    """The net: its class, the class's arguments and its weights."""

    name: str
    target: str
    options: dict[str, Any]
    checkpoint: str | None


@dataclass(frozen=True)
class DataSpec:
    """The images and how they are batched."""

    name: str
    path: str | None
    labels: str | None
    size: int | None
    batch_size: int
    batches: int


@dataclass(frozen=True)
class Job:
    """All that a worker needs to know, as one JSON document."""

    role: str  # "reference" describes the run; "companion" takes turns and no more; "stage" does all; "counted": a call
    stage: StageSpec
    model: ModelSpec
    data: DataSpec
    plan: Plan
    device: str  # "cuda" or "cpu"
    threads: int | None
    seed: int
    time_inaccurate: bool
    launcher: str  # Hydra's
    folder: str  # the stage's own
    reference: str  # the file with the reference's logits
    earlier: str | None = None  # the scratch folder of the same stage's first process, to build from; else build cold


@dataclass(frozen=True)
class RunConfig:
    """One run: some stages, one net, one set of images, one device."""

    stages: list[StageSpec]
    model: ModelSpec
    data: DataSpec
    plan: Plan
    device: str
    threads: int | None
    seed: int
    time_inaccurate: bool
    strict: bool
    preset: str
    launcher: str
    baseline: StageSpec

    def job(self, stage: StageSpec, role: str, run_folder: Path, name: str | None = None) -> Job:
        """The worker's share of the question; `name` is the folder's where it isn't the stage's."""
        return Job(
            role=role,
            stage=stage,
            model=self.model,
            data=self.data,
            plan=self.plan,
            device=self.device,
            threads=self.threads,
            seed=self.seed,
            time_inaccurate=self.time_inaccurate,
            launcher=self.launcher,
            folder=str(run_folder / (name or stage.name)),
            reference=str(run_folder / REFERENCE_LOGITS),
        )


def read(config: Mapping[str, Any], device: str, baseline: Mapping[str, Any], launcher: str = "basic") -> RunConfig:
    """The question that a resolved config asks, for `device` as it was found.

    Args:
        config: the composed config as plain containers.
        device: "cuda" or "cpu".
        baseline: the baseline's stage file, likewise.
        launcher: Hydra's; it may change what is measured, so the record keeps it.

    Raises:
        RequestError: a value can't be; the text names the key and the nearest choice.
    """
    check_report(config.get("report") or {})
    return RunConfig(
        stages=_stages(config["stage"]),
        model=_model(config["model"]),
        data=_data(config["data"]),
        plan=_plan(config["measure"]),
        device=device,
        threads=_count("threads", config["threads"], least=1, optional=True),
        seed=_count("seed", config["seed"], least=0) or 0,
        time_inaccurate=_flag("time_inaccurate", config["time_inaccurate"]),
        strict=_flag("strict", config["strict"]),
        preset=str(config["preset"]),
        launcher=launcher,
        baseline=_stage(baseline),
    )


def check_report(knobs: Mapping[str, Any]) -> None:
    """Whether the report can be drawn with these knobs.

    Raises:
        RequestError: a key that isn't known, or a value that is neither null nor a number above 0.
    """
    for key, value in knobs.items():
        if key not in REPORT_KEYS:
            raise RequestError(f"report.{key}: no such key; {nearest(key, REPORT_KEYS)}")
        free = key == "gpu_hour_price" and value == 0
        wrong = isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf
        if value is not None and wrong and not free:
            raise RequestError(f"report.{key}={_word(value)}: a number above 0 is wanted, or null")


def _stages(value: Mapping[str, Any]) -> list[StageSpec]:
    if "rungs" not in value:
        return [_stage(value)]
    specs = [_stage(rung) for rung in value["rungs"].values()]
    names = [spec.name for spec in specs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RequestError(f"stage: two rungs are called {twice[0]!r}; give each a name of its own")
    return specs


def _stage(value: Mapping[str, Any]) -> StageSpec:
    name = str(value.get("name", ""))
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise RequestError(f"stage.name={name!r}: a stage's name is a folder's: letters, digits, '_', '-' and '.'")
    for key in ("target", "tolerance"):
        if not value.get(key):
            raise RequestError(f"stage {name}: its YAML has no {key!r}; conf/stage/eager.yaml shows one")
    options = {key: part for key, part in value.items() if key not in STAGE_FIELDS}
    for option, allowed in (value.get("choices") or {}).items():
        if options.get(option) not in allowed:
            words = [_word(choice) for choice in allowed]
            raise RequestError(
                f"stage.{option}={_word(options.get(option))}: {nearest(_word(options.get(option)), words)}"
            )
    return StageSpec(
        name=name,
        target=str(value["target"]),
        summary=str(value.get("summary", "")),
        adds=str(value.get("adds", "")),
        devices=[str(device) for device in value.get("devices", ["cuda", "cpu"])],
        unavailable=str(value.get("unavailable", "")),
        legacy=bool(value.get("legacy", False)),
        tolerance=_tolerance(name, value["tolerance"]),
        options=options,
    )


def _tolerance(stage: str, value: Mapping[str, Any]) -> Tolerance:
    missing = [part.name for part in fields(Tolerance) if part.name not in value]
    if missing:
        raise RequestError(
            f"stage {stage}: tolerance has no {missing[0]!r}; it takes relative_l2, flipped_share, reason"
        )
    for key in ("relative_l2", "flipped_share"):
        _number(f"stage.tolerance.{key}", value[key])
    return Tolerance(float(value["relative_l2"]), float(value["flipped_share"]), str(value["reason"]))


def _model(value: Mapping[str, Any]) -> ModelSpec:
    if not value["target"]:
        raise RequestError("model.target: name the class of your net, such as model.target=my_package.MyNet")
    checkpoint = value["checkpoint"]
    return ModelSpec(
        str(value["name"]), str(value["target"]), dict(value["options"] or {}), str(checkpoint) if checkpoint else None
    )


def _data(value: Mapping[str, Any]) -> DataSpec:
    path, labels = value["path"], value["labels"]
    if value["name"] == "folder" and not path:
        raise RequestError("data.path: name the folder of your images, such as data.path=images/")
    for key, folder in (("data.path", path), ("data.labels", labels)):
        if folder and not Path(folder).is_dir():
            raise RequestError(f"{key}={folder}: no such folder{_neighbour(Path(folder))}")
    return DataSpec(
        name=str(value["name"]),
        path=str(path) if path else None,
        labels=str(labels) if labels else None,
        size=_count("data.size", value["size"], least=1, optional=True),
        batch_size=_count("data.batch_size", value["batch_size"], least=1) or 1,
        batches=_count("data.batches", value["batches"], least=3) or 3,
    )


def _neighbour(path: Path) -> str:
    beside = [part.name for part in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.5)
    return f"; did you mean {path.parent / close[0]}?" if close else ""


def _plan(value: Mapping[str, Any]) -> Plan:
    known = {part.name: part.type for part in fields(Plan)}
    for key, part in value.items():
        if key not in known:
            raise RequestError(f"measure.{key}: no such knob; {nearest(key, sorted(known))}")
        if known[key] is bool:
            _flag(f"measure.{key}", part)
            continue
        for number in part if isinstance(part, list) else [part]:
            _number(f"measure.{key}", number)
    knobs: dict[str, Any] = {key: tuple(part) if isinstance(part, list) else part for key, part in value.items()}
    return Plan(**knobs)


def _count(key: str, value: Any, least: int, optional: bool = False) -> int | None:
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RequestError(f"{key}={value}: a whole number of at least {least} is wanted")
    return value


def _number(key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise RequestError(f"{key}={value}: a number of at least 0 is wanted")


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{key}={value}: true or false is wanted")
    return value


def _word(value: Any) -> str:
    return (
        {None: "null", True: "true", False: "false"}.get(value, str(value))
        if value is None or isinstance(value, bool)
        else str(value)
    )


def job_document(job: Job) -> dict[str, Any]:
    """The job as plain JSON values."""
    return asdict(job)
