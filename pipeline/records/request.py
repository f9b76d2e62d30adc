"""The request of a run, and the job of a worker; annotations hold the constraints that msgspec checks."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from pipeline.inputs.input_contract import VOLUME, InputContract, LabelRules
from pipeline.records.goals import SEGMENTATION, AccuracyLimits, Goal, Task, Tolerance
from pipeline.records.plan import Plan

ExportKind = Literal["onnx", "torchscript", "aot_inductor", "exported", "own_kernels"]
PositiveInt = Annotated[int, Meta(ge=1)]
NonNegativeInt = Annotated[int, Meta(ge=0)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # the seeds that torch takes
FINITE = 1e300
REFERENCE_LOGITS = Path("reference", "logits.safetensors")  # within a run's folder
REFERENCE_FIRST = REFERENCE_LOGITS.with_name("first.safetensors")  # some values of the network's first answer
SCRATCH = "scratch"  # within a stage's folder: compilers' caches, deleted at the end of the run


@dataclass(frozen=True)
class StageSpec:
    """A stage as a file of conf/stage describes it."""

    name: str
    target: str  # the module with the stage's `build`
    summary: str
    adds: str
    devices: list[Literal["cuda", "cpu"]]
    unavailable: str  # why it does not run on the other devices
    legacy: bool
    tolerance: Tolerance
    options: dict[str, Any]  # keyword arguments of `build`
    exports: ExportKind | None = None  # the form in which `pipeline.export` packs it; None: none
    any_size: bool = False  # takes inputs of any height and width
    packages: list[str] = field(default_factory=list)  # distributions whose versions the record keeps
    variables: list[str] = field(default_factory=list)  # how the variables begin that its runtime reads

    def measured_by(self) -> dict[str, object]:
        """Return the fields that change what is measured, and the options."""
        fields = {name: value for name, value in asdict(self).items() if name not in ("name", "summary", "adds")}
        return {key: value for key, value in fields.items() if key != "options"} | dict(self.options)


# The keys of a stage's YAML; its other keys are options.
STAGE_FIELDS = tuple(part.name for part in fields(StageSpec) if part.name != "options")


@dataclass(frozen=True)
class ModelSpec:
    """The network: its class, the arguments of the class and the weights."""

    name: str = ""
    target: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    checkpoint: str | None = None
    checkpoint_key: str | None = None  # of the weights in a file that holds several
    output: int | str | None = None  # the part of the answer that holds the logits; None: all of it
    upsample_logits: Literal["bilinear", "nearest"] | None = None  # brings logits to the image's size
    file: str | None = None  # a network saved by torch.export, instead of class, options and weights
    trained: bool | None = None  # the class loads trained weights itself; None: unknown

    @property
    def is_trained(self) -> bool:
        """The answers are meaningful: there is a file of weights, or the user says so."""
        return self.weights is not None if self.trained is None else self.trained

    @property
    def weights(self) -> str | None:
        """The file with trained weights; None: random weights."""
        return self.file or self.checkpoint


@dataclass(frozen=True)
class DataSpec:
    """The images, their normalisation and their batches."""

    name: str
    path: str | None = None
    labels: str | None = None
    size: PositiveInt | None = None  # width in pixels, and height unless that is set; None: that of the images
    batch_size: PositiveInt = 1
    batches: int = 3
    contract: InputContract = field(default_factory=InputContract)
    label_rules: LabelRules = field(default_factory=LabelRules)
    inputs: tuple[str, ...] = ()  # data=tensors: names in the order of the network's forward; () is all
    depth: PositiveInt | None = None  # data=volume: planes of a window; None: `size`
    height: PositiveInt | None = None  # of a window that is not square; None: `size`
    images: PositiveInt | None = None  # data=generated: drawn and judged

    @property
    def sides(self) -> tuple[int, ...]:
        """Height and width of a window, of volumes with a depth before; none if images keep their own size."""
        if self.size is None:
            return ()
        plane = (self.height or self.size, self.size)
        return (self.depth or self.size, *plane) if self.name == VOLUME else plane


@dataclass(frozen=True)
class Job:
    """The input of a worker, as one JSON document."""

    # "reference" describes the run; "companion" is only sampled; "stage" does all; "counted": one call;
    # "hosted": single calls from host memory and back; "peaks": the device's peaks alone
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
    folder: str  # of the stage
    reference: str  # the file with the logits of the reference
    accuracy: AccuracyLimits = field(default_factory=AccuracyLimits)  # besides the stage's tolerance
    earlier: str | None = None  # scratch folder of the stage's first process, to build from; None: build cold
    task: Task = SEGMENTATION
    packages: tuple[str, ...] = ()  # of all stages of the run
    variables: tuple[str, ...] = ()  # likewise


@dataclass(frozen=True)
class ReportTargets:
    """The figures for cost and capacity; None leaves them out of the report."""

    gpu_hour_price: Annotated[float, Meta(ge=0, le=FINITE)] | None = None  # in the user's currency
    target_images_per_second: Annotated[float, Meta(gt=0, le=FINITE)] | None = None
    target_p99_ms: Annotated[float, Meta(gt=0, le=FINITE)] | None = None


ResumeDespite = Literal["code", "config", "weights", "data", "device", "versions", "environment"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The keys of conf/config.yaml that a record keeps as they are typed."""

    preset: str
    threads: PositiveInt | None
    seed: Seed
    time_inaccurate: bool
    strict: bool
    resume: str | None = None  # folder of an earlier run, whose finished stages are taken over
    resume_despite: list[ResumeDespite] = field(default_factory=list)  # allowed differences from that run
    gpu_busy: Literal["wait", "refuse", "share"] = "wait"  # if another run holds the GPU
    task: Task = SEGMENTATION
    report: ReportTargets = field(default_factory=ReportTargets)


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings):
    """The request of one run: stages, a network, images and a device."""

    stages: list[StageSpec]
    model: ModelSpec
    data: DataSpec
    plan: Plan
    device: str
    launcher: str
    baseline: StageSpec  # interleaved with every stage
    eager: StageSpec  # fp32: the reference, and the baseline if the other one cannot run
    accuracy: AccuracyLimits = field(default_factory=AccuracyLimits)
    goal: Goal = field(default_factory=Goal)
    sweep: str | None = None  # folder of the sweep that this run belongs to
    ladder: bool = False  # the keys of a stage begin with stage.rungs.NAME
    variables: list[str] = field(default_factory=list)  # of the environment, named by the request

    def measured_by(self) -> dict[str, object]:
        """Return the settings that change what is measured, by the keys that a user types.

        Texts about a stage, the place of the run and the rules that judge its results are left out.
        """
        plan = {name: value for name, value in asdict(self.plan).items() if name != "gpu"}  # which `Plan.on` has taken
        data = {key.removeprefix("contract."): value for key, value in flattened(asdict(self.data))}
        labels = {key.replace("label_rules.pattern", "label_pattern"): value for key, value in data.items()}
        groups = {
            "model": {key: value for key, value in asdict(self.model).items() if key != "trained"},
            "data": {key.removeprefix("label_rules."): value for key, value in labels.items()},
            "task": asdict(self.task),
            "measure": plan,
            "stage": {spec.name: spec.measured_by() for spec in self.stages},
        }
        own = {name: getattr(self, name) for name in ("device", "threads", "seed", "time_inaccurate")}
        return dict(flattened(groups | own))

    def job(self, stage: StageSpec, role: str, run_folder: Path, name: str | None = None) -> Job:
        """Return a worker's job; `name` is that of its folder, by default the stage's."""
        own: dict[str, Any] = {part.name: getattr(self, part.name, None) for part in fields(Job)}
        own |= {
            "role": role,
            "stage": stage,
            "folder": str(run_folder / (name or stage.name)),
            "reference": str(run_folder / REFERENCE_LOGITS),
            "packages": tuple(dict.fromkeys(name for spec in self.stages for name in spec.packages)),
            "variables": tuple(dict.fromkeys(name for spec in self.stages for name in spec.variables)),
        }
        return Job(**own)


def flattened(values: Mapping[str, object], before: str = "") -> Iterator[tuple[str, object]]:
    """Yield each value that is no mapping, with its path, such as "model.options.base"."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", list(value) if isinstance(value, tuple) else value
