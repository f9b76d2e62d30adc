"""The request of a run as typed values; the constraints of the annotations are checked in `pipeline.config`."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from pipeline.inputs.input_contract import InputContract, LabelRules
from pipeline.records.goals import SEGMENTATION, AccuracyLimits, Goal, Task, Tolerance
from pipeline.records.plan import Plan

ExportKind = Literal["onnx", "torchscript", "aot_inductor", "exported", "own_kernels"]
PositiveInt = Annotated[int, Meta(ge=1)]
NonNegativeInt = Annotated[int, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # the seeds that torch takes
FINITE = 1e300
REFERENCE_LOGITS = Path("reference", "logits.safetensors")  # within a run's folder
REFERENCE_FIRST = REFERENCE_LOGITS.with_name("first.safetensors")  # some values of the net's first answer
SCRATCH = "scratch"  # within a stage's folder: compilers' caches, deleted at the end of the run


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
    exports: ExportKind | None = None  # the form in which `pipeline.export` packs it; None where it has none
    any_size: bool = False  # takes inputs of other heights and widths than those that it was built on
    packages: list[str] = field(default_factory=list)  # distributions whose versions the record names
    variables: list[str] = field(default_factory=list)  # how the variables begin that its runtime reads

    def measured_by(self) -> dict[str, object]:
        """Return the fields that change what is measured, and the options."""
        fields = {name: value for name, value in asdict(self).items() if name not in ("name", "summary", "adds")}
        return {key: value for key, value in fields.items() if key != "options"} | dict(self.options)


# Of a stage's YAML; its other keys are options.
STAGE_FIELDS = tuple(part.name for part in fields(StageSpec) if part.name != "options")


@dataclass(frozen=True)
class ModelSpec:
    """The net: its class, the class's arguments and its weights."""

    name: str = ""
    target: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    checkpoint: str | None = None
    output: int | str | None = None  # which part of the net's answer holds the logits; None where the answer is they
    file: str | None = None  # a net as torch.export wrote it, in place of class, arguments and weights
    trained: bool | None = None  # whether the net brings trained weights itself; None where nobody says

    @property
    def is_trained(self) -> bool:
        """Whether its answers mean something: without a file of weights they do where the user says so."""
        return self.weights is not None if self.trained is None else self.trained

    @property
    def weights(self) -> str | None:
        """The file with trained weights; None where they are random."""
        return self.file or self.checkpoint


@dataclass(frozen=True)
class DataSpec:
    """The images, what their values mean and how they are batched."""

    name: str
    path: str | None = None
    labels: str | None = None
    size: PositiveInt | None = None  # height and width in pixels; None keeps the images' own
    batch_size: PositiveInt = 1
    batches: int = 3
    contract: InputContract = field(default_factory=InputContract)
    label_rules: LabelRules = field(default_factory=LabelRules)
    inputs: tuple[str, ...] = ()  # of data=tensors: which of the file's, in the order of the net's forward; () is all
    depth: PositiveInt | None = None  # of data=volume: planes of a window; None is `size`


@dataclass(frozen=True)
class Job:
    """All that a worker needs to know, as one JSON document."""

    # "reference" describes the run; "companion" is only sampled; "stage" does all; "counted": one call;
    # "hosted": single calls from host memory and back
    role: str
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
    accuracy: AccuracyLimits = field(default_factory=AccuracyLimits)  # that the stage's answer must keep, too
    earlier: str | None = None  # the scratch folder of the same stage's first process, to build from; else build cold
    task: Task = SEGMENTATION
    packages: tuple[str, ...] = ()  # of all stages of the run
    variables: tuple[str, ...] = ()  # likewise


@dataclass(frozen=True)
class ReportTargets:
    """The figures that cost and capacity are computed from; None leaves that out."""

    gpu_hour_price: Annotated[float, Meta(ge=0, le=FINITE)] | None = None  # in the user's currency
    target_images_per_second: Annotated[float, Meta(gt=0, le=FINITE)] | None = None
    target_p99_ms: Annotated[float, Meta(gt=0, le=FINITE)] | None = None


ResumeDespite = Literal["code", "config", "weights", "data", "device", "versions", "environment"]


@dataclass(frozen=True)
class RunConfig:
    """One run: some stages, one net, one set of images, one device."""

    stages: list[StageSpec]
    model: ModelSpec
    data: DataSpec
    plan: Plan
    device: str
    threads: PositiveInt | None
    seed: Seed
    time_inaccurate: bool
    strict: bool
    preset: str
    launcher: str
    baseline: StageSpec  # that every stage is interleaved with
    eager: StageSpec  # fp32: the reference of every check, and the baseline where the other one can't run
    resume: str | None = None  # the folder of an earlier run, whose finished stages are taken over
    resume_despite: list[ResumeDespite] = field(default_factory=list)  # in what that run may differ from this one
    gpu_busy: Literal["wait", "refuse", "share"] = "wait"  # what to do where another run holds the GPU
    accuracy: AccuracyLimits = field(default_factory=AccuracyLimits)
    goal: Goal = field(default_factory=Goal)
    task: Task = SEGMENTATION
    sweep: str | None = None  # the folder of the sweep that this run is a job of
    report: ReportTargets = field(default_factory=ReportTargets)
    ladder: bool = False  # the stages were asked for as rungs, whose keys begin with stage.rungs.NAME
    variables: list[str] = field(default_factory=list)  # of the environment, that the request refers to

    def measured_by(self) -> dict[str, object]:
        """Return the settings that change what is measured, by the keys that a user types.

        What is shown of a stage, where and when the run takes place and how its results are judged are left out.
        """
        plan = {name: value for name, value in asdict(self.plan).items() if name != "gpu"}  # which `Plan.on` has taken
        data = {key.removeprefix("contract."): value for key, value in flattened(asdict(self.data))}
        labels = {key.replace("label_rules.pattern", "label_pattern"): value for key, value in data.items()}
        groups = {
            "model": asdict(self.model),
            "data": {key.removeprefix("label_rules."): value for key, value in labels.items()},
            "task": asdict(self.task),
            "measure": plan,
            "stage": {spec.name: spec.measured_by() for spec in self.stages},
        }
        own = {name: getattr(self, name) for name in ("device", "threads", "seed", "time_inaccurate")}
        return dict(flattened(groups | own))

    def job(self, stage: StageSpec, role: str, run_folder: Path, name: str | None = None) -> Job:
        """The worker's share of the request; `name` is the folder's where it isn't the stage's."""
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
            accuracy=self.accuracy,
            task=self.task,
            packages=tuple(dict.fromkeys(name for spec in self.stages for name in spec.packages)),
            variables=tuple(dict.fromkeys(name for spec in self.stages for name in spec.variables)),
        )


def flattened(values: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """Yield each value that is no mapping, with its path, such as "model.options.base"."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", list(value) if isinstance(value, tuple) else value


def job_document(job: Job) -> dict[str, object]:
    """The job as plain JSON values."""
    return asdict(job)
