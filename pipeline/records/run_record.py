"""The record of a run, which results.json holds. Units are in the names."""

from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.records import samples
from pipeline.records.data_words import Words, words_for
from pipeline.records.diagnostics import Diagnostics, LayerWork, PrecisionFault, Profile, SearchAsked
from pipeline.records.request import RunConfig, StageSpec
from pipeline.records.samples import Accuracy, Duration, Energy, HostPath, Memory, Pair, Seconds, Service, WarmUp


@dataclass(frozen=True)
class Environment:
    """The machine and the software of a run."""

    device: str  # "cuda" or "cpu"
    device_name: str  # "NVIDIA H200", or the processor's model name
    driver: str | None
    cuda: str | None
    cudnn: str | None
    capability: str | None  # "9.0"
    multiprocessors: int | None
    device_memory_bytes: int | None
    l2_bytes: int | None
    cpu_name: str
    cpu_threads: int  # torch's intra-op threads
    python: str
    platform: str
    packages: dict[str, str]  # name to version
    commit: str | None
    dirty: bool | None
    launcher: str  # of Hydra; "basic" without a sweep
    others_on_device: list[str]  # other processes on the device at the start
    variables: dict[str, str] | None = None  # of the environment, read by libraries; None: not recorded
    uuid_sha256: str | None = None  # of the GPU's UUID, which names the card without telling whose it is
    power_limit_watts: float | None = None
    celsius: int | None = None  # of the device at the start


@dataclass(frozen=True)
class MeasuredPeaks:
    """The measured peaks of the device at the start of the run; None: no such unit."""

    tflops: dict[str, float]  # "fp32", "tf32", "fp16", "bf16", "fp8" to 10^12 FLOP/s, large matmul, random data
    bandwidth_bytes_per_s: float  # large copy on the device, read plus write
    pinned_copy_bytes_per_s: float | None  # host to device
    pageable_copy_bytes_per_s: float | None
    launch_us: float | None  # of an empty kernel, back to back


SCHEMA_VERSION = 1  # stays 1 until the release
EAGER, AUTOCAST = "eager", "amp"  # the stages that may be baselines
INDUCTOR = "Inductor"  # provider of the kernels that torch.compile generates

Status = Literal["ok", "failed", "inaccurate", "timeout", "skipped"]
FailureKind = Literal[
    "out of memory",
    "killed",  # by SIGKILL, which Linux sends if memory runs out
    "died",  # the process ended by another signal, or exited early
    "timeout",  # a phase took longer than its limit
    "unsupported",  # on this machine, or for this network
    "missing library",
    "wrong device",  # another device or provider than requested
    "wrong answer",
    "accuracy limit",  # within the stage's tolerance, beyond the user's limits
    "broken contract",  # a malformed answer, or changed inputs
    "not as declared",  # another precision than declared
    "impossible",  # faster than the device can be
    "protocol",  # a malformed message of the worker
    "interrupted",  # by the user
    "error",  # any other
]
WarningCode = Literal[  # the gravest consequence first
    # The answer may be wrong.
    "something else ran", "net in doubt", "weights", "not a number", "reference in doubt", "parts left out",
    "calibrated on judged images", "few pictures",
    # The choice may be wrong.
    "clocks disagree", "unfair", "shared device", "busy GPU", "busy processor", "processor quota", "A/A failed",
    "ill baseline", "slower at steady state", "unsteady", "not at rest", "processes alternated", "throttled",
    "head-to-head failed", "outliers", "drift",
    # A figure is missing, or needs to be read with care.
    "phase failed", "baseline replaced", "baseline restarted", "resumed", "files left out",
]  # fmt: skip
Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
Order = Literal["NCHW", "NHWC"]  # of volumes NCDHW and NDHWC
Layout = Literal[Order, "mixed"]


@dataclass(frozen=True)
class RunWarning:
    """A doubt about a measurement, and its remedy."""

    code: WarningCode
    text: str  # the observation, with its figure
    remedy: str


@dataclass(frozen=True)
class Execution:
    """The way a stage runs the network, as declared or else as observed; None: unknown."""

    precision: Precision | None = None  # of the inputs of most FLOPs in convolutions and matrix products
    layer_precision: dict[str, Precision] = field(default_factory=dict)  # by module path, if it differs
    layout: Layout | None = None  # of the inputs of convolutions; NHWC includes NDHWC
    provider: str | None = None  # "PyTorch eager", "TorchScript", "Inductor", "ONNX Runtime CUDAExecutionProvider", …
    captured: bool | None = None  # a call replays a CUDA graph
    fuses: bool | None = None  # several operators run in one pass over memory
    own_kernels: int = 0  # layers that this project's kernels run
    layer_flops: dict[str, float] = field(default_factory=dict)  # per image, of layers that multiply less
    unknown: str = ""  # why a property is None
    instead: str = ""  # the fallback that runs, and why; empty without one
    casts_own_values: bool | None = None  # casts fp32 values that the network makes; None: unknown


@dataclass(frozen=True)
class CompileFacts:
    """The counts of compilation and tuning; None: not counted."""

    graphs: int | None = None  # compiled by Dynamo
    graph_breaks: dict[str, int] | None = None  # counts by reason
    recompile_reasons: list[str] | None = None  # one for each recompilation
    generated_kernels: int | None = None  # including those that were only tried
    cache_bytes: int | None = None  # of the compiler's cache on disk
    candidates_measured: int | None = None  # timed tiles and kernels of this project

    @property
    def breaks(self) -> int | None:
        """The number of graph breaks."""
        return None if self.graph_breaks is None else sum(self.graph_breaks.values())

    @property
    def recompiles(self) -> int | None:
        """The number of recompilations."""
        return None if self.recompile_reasons is None else len(self.recompile_reasons)


@dataclass(frozen=True)
class Reference:
    """The unchanged fp32 network (TF32 off), against which every answer is checked."""

    flops_per_image: int  # 2 FLOP per multiply-add, torch.utils.flop_counter
    parameters: int
    weights_bytes: int
    weights_sha256: str | None
    repeat_relative_l2: float  # the same batch twice: the network's noise
    batch_relative_l2: float  # each image alone against the whole batch
    fp64_relative_l2: float | None  # against fp64, if it fits and runs
    minimal_bytes_per_image: int  # fp32 activations of every layer read and written once, for the roofline
    images: list[str]  # names: a file, or a window or shift of it
    labels: str | None  # origin of the labels; None without labels
    layers: list[LayerWork] = field(default_factory=list)  # in execution order
    weights_stored_as: list[str] = field(default_factory=list)  # types in the checkpoint, converted to fp32
    distinct: int | None = None  # leading images that are no repeat or shift of another; None: unknown
    spatial_dims: int | None = None  # of the first input: 3 for volumes; None: unknown
    mask_classes: list[int] = field(default_factory=list)  # of all its masks; empty: no masks, or unknown


@dataclass(frozen=True)
class Artefact:
    """A file that a stage leaves, with its digest."""

    path: str  # within the run's folder
    kind: str  # "onnx", "torchscript", "inductor code", ...
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class StageRecord:
    """One stage of a run."""

    spec: StageSpec  # as it ran, also if it was taken over from an earlier run
    status: Status = "failed"
    failure: FailureKind | None = None  # None: ok, or not run
    reason: str = ""  # one line: why it is not ok
    description: str = ""  # of what ran, one line
    execution: Execution | None = None  # None: no answer
    net_layout: Order | None = None  # chosen for the network; None: no choice
    compile_facts: CompileFacts | None = None  # None: nothing was compiled or tuned
    searches_asked: list[SearchAsked] = field(default_factory=list)  # searches for the fastest algorithm
    details: dict[str, Any] = field(default_factory=dict)  # free-form, only shown
    start_seconds: Duration | None = None  # from the start of the process to the loaded workload
    phase_seconds: dict[str, float] = field(default_factory=dict)  # wall time of its first process, by phase
    build_seconds: Duration | None = None
    first_call_seconds: Duration | None = None
    calibration: samples.Calibration | None = None  # None: nothing was chosen on images
    warm_up: WarmUp | None = None
    accuracy: Accuracy | None = None
    precision_faults: list[PrecisionFault] = field(default_factory=list)  # in the order of the attempts
    pairs: list[Pair] = field(default_factory=list)  # with the baseline, one per trial
    latencies: list[Seconds] = field(default_factory=list)  # each call synchronised
    latency_steady: bool | None = None  # None: not checked
    host_latencies: list[Seconds] = field(default_factory=list)  # from pinned host memory and back
    host_path: list[HostPath] = field(default_factory=list)  # one step after another
    host_path_left_out: str = ""  # why it was not measured
    memory: Memory | None = None
    memory_shortage: samples.MemoryShortage | None = None  # None: memory sufficed, or unknown
    service: Service | None = None  # None: not exported
    energy: Energy | None = None
    profile: Profile | None = None
    diagnostics: Diagnostics | None = None
    artefacts: list[Artefact] = field(default_factory=list)
    warnings: list[RunWarning] = field(default_factory=list)
    log: str | None = None  # path within the run's folder
    log_tail: str = ""
    name: str = ""  # of `spec`; beside the status for programs that read results.json

    def __post_init__(self) -> None:
        """Take the name from the request."""
        object.__setattr__(self, "name", self.spec.name)

    @property
    def explained(self) -> Diagnostics:
        """The diagnoses; none of them where none was made."""
        return self.diagnostics or Diagnostics()

    @property
    def usable(self) -> bool:
        """The stage is right and measured, so that it can be ranked."""
        return self.status == "ok" and bool(self.pairs)

    @property
    def setup_seconds(self) -> float:
        """The seconds of build and first call."""
        return (self.build_seconds or 0.0) + (self.first_call_seconds or 0.0)

    @property
    def precision(self) -> Precision | None:
        """The precision of matrix operations; None: unknown."""
        return self.execution.precision if self.execution else None


@dataclass(frozen=True)
class RunRecord:
    """A run: the request, the machine, and one record for each stage in the order of the ladder."""

    started_at: str  # ISO 8601 with offset
    command: str  # as typed
    config: RunConfig
    environment: Environment | None = None
    measured_peaks: MeasuredPeaks | None = None
    reference: Reference | None = None
    described_by: str | None = None  # job of the sweep that found these three; None: this run
    baseline: str = EAGER  # interleaved with every stage
    baseline_host_latencies: list[Seconds] = field(default_factory=list)  # if the baseline is no stage of the run
    aa_pairs: list[Pair] = field(default_factory=list)  # the baseline with itself
    stages: list[StageRecord] = field(default_factory=list)
    head_to_head: list[Pair] = field(default_factory=list)  # the fastest stage (A) with its contenders
    drift: float | None = None  # of the baseline: median of the last samples over that of the first, minus 1
    warnings: list[RunWarning] = field(default_factory=list)
    code_sha256: str | None = None  # of the program's sources
    own_code_sha256: str | None = None  # of the user's modules with network and stages; None: none in the folder
    data_sha256: str | None = None  # of the user's images and labels; None: the program's own
    winner: str | None = None  # by the goal; None: no winner, or not finished
    seconds: float = 0.0  # wall time of the run
    phase_seconds: dict[str, float] = field(default_factory=dict)  # of that, by step: the reference, each stage, ...
    finished: bool = False  # False: interrupted
    schema_version: int = SCHEMA_VERSION

    @property
    def batch_size(self) -> int:
        """Images per call."""
        return self.config.data.batch_size

    @property
    def words(self) -> Words:
        """The words for the data: images, or volumes."""
        return words_for(self.reference.spatial_dims if self.reference else None, self.config.data.name)

    @property
    def unjudged(self) -> Literal["no masks", "random weights", "one class", ""]:
        """Why no stage's masks are judged: no wrong mask differs from those of one class in every place."""
        if not (self.config.task.has_masks and self.config.model.is_trained):
            return "random weights" if self.config.task.has_masks else "no masks"
        return "one class" if self.reference and len(self.reference.mask_classes) == 1 else ""
