"""The parts of a run's configuration that a reader of its record needs, typed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipeline.inputs.input_contract import InputContract, LabelRules
from pipeline.records.goals import AccuracyLimits, Goal
from pipeline.records.tasks import Task


@dataclass(frozen=True)
class ModelSettings:
    """The net."""

    name: str = ""
    target: str = ""  # import path of the net's class
    options: dict[str, Any] = field(default_factory=dict)  # keyword arguments of the class
    checkpoint: str | None = None  # file of trained weights
    output: int | str | None = None  # which part of the net's answer holds the logits; None where the answer is they
    file: str | None = None  # a net as torch.export wrote it, in place of class, arguments and weights
    said_trained: bool | None = None  # model.trained: whether it brings trained weights itself; None where nobody says

    @property
    def weights(self) -> str | None:
        """The file with trained weights; None where they are random."""
        return self.file or self.checkpoint

    @property
    def trained(self) -> bool:
        """Whether its masks mean something: without a checkpoint they do where the user says so."""
        return self.weights is not None if self.said_trained is None else self.said_trained


@dataclass(frozen=True)
class DataSettings:
    """The images."""

    name: str = ""
    path: str | None = None
    labels: str | None = None
    image_size: int | None = None  # pixels a side; None keeps each image's own size
    batch_size: int | None = None  # images per call; None in the record of a refused request
    contract: InputContract = field(default_factory=InputContract)  # how an image becomes the net's input
    label_rules: LabelRules = field(default_factory=LabelRules)  # how labels become classes
    inputs: list[str] = field(default_factory=list)  # names of the user's tensors that were asked for; [] is all
    depth: int | None = None  # planes of a window of a volume; None is `image_size`


@dataclass(frozen=True)
class MeasureSettings:
    """The knobs of the measurement that recommendations are drawn from."""

    sampling_seconds: float | None = None  # after which no further block began
    trials: int | None = None  # fresh processes of each stage


@dataclass(frozen=True)
class ReportSettings:
    """What the report computes cost and capacity for; None leaves that out."""

    gpu_hour_price: float | None = None  # in the user's currency
    target_images_per_second: float | None = None
    target_p99_ms: float | None = None


@dataclass(frozen=True)
class RunSettings:
    """The settings that analysis and report read; the record's `config` is shown and compared, and not read."""

    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    measure: MeasureSettings = field(default_factory=MeasureSettings)
    report: ReportSettings = field(default_factory=ReportSettings)
    accuracy: AccuracyLimits = field(default_factory=AccuracyLimits)
    goal: Goal = field(default_factory=Goal)
    task: Task = field(default_factory=Task)


def settings_of(config: Mapping[str, object]) -> RunSettings:
    """The settings in a composed config; a value of another type, as a refused request may hold, counts as not set."""
    model, data, measure, report = (_section(config, name) for name in ("model", "data", "measure", "report"))
    options = model.get("options")
    return RunSettings(
        ModelSettings(
            name=_text(model.get("name")) or "",
            target=_text(model.get("target")) or "",
            options=dict(options) if isinstance(options, Mapping) else {},
            checkpoint=_text(model.get("checkpoint")),
            said_trained=said if isinstance(said := model.get("trained"), bool) else None,
        ),
        DataSettings(
            name=_text(data.get("name")) or "",
            path=_text(data.get("path")),
            labels=_text(data.get("labels")),
            image_size=_count(data.get("size")),
            batch_size=_count(data.get("batch_size")),
        ),
        MeasureSettings(_number(measure.get("sampling_seconds")), _count(measure.get("trials"))),
        ReportSettings(
            gpu_hour_price=_number(report.get("gpu_hour_price")),
            target_images_per_second=_number(report.get("target_images_per_second")),
            target_p99_ms=_number(report.get("target_p99_ms")),
        ),
    )


def _section(config: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = config.get(name)
    return part if isinstance(part, Mapping) else {}


def _text(value: object) -> str | None:
    return str(value) if value is not None else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
