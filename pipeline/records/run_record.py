"""What a run leaves behind: frozen dataclasses, written to results.json and read again. Units stand in the names."""

from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.records.data_words import Words, words_for
from pipeline.records.diagnostics import Diagnostics, LayerWork, PrecisionFault, Profile, SearchAsked
from pipeline.records.request import RunConfig, StageSpec
from pipeline.records.samples import (
    Accuracy,
    Calibration,
    Energy,
    HostPath,
    Memory,
    MemoryShortage,
    Pair,
    Seconds,
    WarmUp,
)


@dataclass(frozen=True)
class Environment:
    """The machine and the software that gave the numbers."""

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
    launcher: str  # Hydra's launcher, "basic" where there is no sweep
    others_on_device: list[str]  # other processes that held the device at the start
    variables: dict[str, str] | None = None  # of the environment, which libraries read; None where none were noted


@dataclass(frozen=True)
class MeasuredPeaks:
    """The most that this device gave at the start of the run; None where it has no such unit."""

    tflops: dict[str, float]  # "fp32", "tf32", "fp16", "bf16", "fp8" to 10^12 FLOP/s, large matmul, random data
    bandwidth_bytes_per_s: float  # large device copy, read plus write
    pinned_copy_bytes_per_s: float | None  # host to device
    pageable_copy_bytes_per_s: float | None
    launch_us: float | None  # of an empty kernel, back to back


SCHEMA_VERSION = 1  # stays 1 until the release
EAGER, AUTOCAST = "eager", "amp"  # the stages that may be baselines
INDUCTOR = "Inductor"  # the provider of what torch.compile generates

Status = Literal["ok", "failed", "inaccurate", "timeout", "skipped"]
FailureKind = Literal[
    "out of memory",
    "killed",  # by SIGKILL, which the kernel sends where memory runs out
    "died",  # the process ended by another signal, or left early
    "timeout",  # a phase outlasted its limit
    "unsupported",  # the stage has no form on this machine, or for this net
    "missing library",
    "wrong device",  # it landed on another device or provider than was asked for
    "wrong answer",
    "accuracy limit",  # right by the stage's tolerance, and beyond what the user asked for
    "broken contract",  # what it returns isn't what a stage owes, or it changed what it was given
    "not as declared",  # it ran in another precision than it says
    "impossible",  # faster than the device can be, or than it is itself on a new picture
    "protocol",  # the worker said something that is no message
    "interrupted",  # by whoever started the run
    "error",  # any other
]
WarningCode = Literal[
    "A/A failed",
    "baseline replaced",
    "baseline restarted",
    "busy processor",
    "busy GPU",
    "clocks differ",
    "clocks disagree",
    "drift",
    "files changed",
    "files left out",
    "head-to-head failed",
    "ill baseline",
    "net in doubt",
    "not a number",
    "not at rest",
    "outliers",
    "phase failed",
    "precision contradicted",
    "processes alternated",
    "processor quota",
    "reference in doubt",
    "resumed",
    "shared device",
    "slower at full load",
    "something else ran",
    "throttled",
    "unfair",
    "unsteady",
]
Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
Order = Literal["NCHW", "NHWC"]  # of volumes NCDHW and NDHWC
Layout = Literal[Order, "mixed"]


@dataclass(frozen=True)
class RunWarning:
    """Something that a reader must know about a measurement, and what to do about it.

    A record keeps those that its other fields don't show; the rest are computed on reading (`pipeline.stats.warnings`).
    """

    code: WarningCode
    text: str  # what was seen, with its figure
    remedy: str  # what to do


@dataclass(frozen=True)
class Execution:
    """How a stage runs the net: as it declares, or where it doesn't, as the worker observed. None is unknown."""

    precision: Precision | None = None  # of the inputs to most FLOPs of convolutions and matrix products
    layer_precision: dict[str, Precision] = field(default_factory=dict)  # module path to precision, where it differs
    layout: Layout | None = None  # of the images that convolutions read; NHWC of volumes is NDHWC
    provider: str | None = None  # "PyTorch eager", "TorchScript", "Inductor", "ONNX Runtime CUDAExecutionProvider", …
    captured: bool | None = None  # a call replays a CUDA graph
    fuses: bool | None = None  # a compiler or a kernel does several operators in one pass over memory
    own_kernels: int = 0  # layers that run by kernels of this project
    layer_flops: dict[str, float] = field(default_factory=dict)  # an image, of layers that multiply less than the net's
    unknown: str = ""  # why a property is None; empty where none is
    instead: str = ""  # what runs in place of what the stage is for, and why; empty where that runs
    casts_own_values: bool | None = None  # fp32 values that the net makes are cast; None where the stage doesn't tell


@dataclass(frozen=True)
class CompileFacts:
    """What compiling and tuning the stage came to; None where nobody counts it."""

    graphs: int | None = None  # that Dynamo compiled
    graph_breaks: dict[str, int] | None = None  # reason to how often
    recompile_reasons: list[str] | None = None  # one for each time that a frame was compiled again
    generated_kernels: int | None = None  # those only tried included
    cache_bytes: int | None = None  # of the compiler's cache on disk
    candidates_measured: int | None = None  # tiles and kernels of this project that were timed

    @property
    def breaks(self) -> int | None:
        """Graph breaks in all."""
        return None if self.graph_breaks is None else sum(self.graph_breaks.values())

    @property
    def recompiles(self) -> int | None:
        """How often a frame was compiled again."""
        return None if self.recompile_reasons is None else len(self.recompile_reasons)


@dataclass(frozen=True)
class Reference:
    """The untouched fp32 net (TF32 off), against which every answer is checked."""

    flops_per_image: int  # 2 FLOP per multiply-add, torch.utils.flop_counter
    parameters: int
    weights_bytes: int
    weights_sha256: str | None
    repeat_relative_l2: float  # the same batch twice: the net's own noise
    batch_relative_l2: float  # each image by itself against all at once
    fp64_relative_l2: float | None  # against the same net in fp64, where it fits and runs
    minimal_bytes_per_image: int  # fp32 activations of every layer read and written once, for the roofline
    images: list[str]  # what each image is called, such as a file, or a window or shift of it
    labels: str | None  # what the labels are; None without labels
    layers: list[LayerWork] = field(default_factory=list)  # in the order in which they run
    weights_stored_as: list[str] = field(default_factory=list)  # types in the checkpoint, all of which became fp32
    distinct: int | None = None  # of the images, from the first; the others are those again, or shifted; None: unknown
    spatial_dims: int | None = None  # of the net's first input, besides batch and channels: 3 of volumes; None: unknown


@dataclass(frozen=True)
class Artefact:
    """A file that the stage leaves, with what is needed to trust it."""

    path: str  # within the run's folder
    kind: str  # "onnx", "torchscript", "inductor code", ...
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class StageRecord:
    """One stage of one run, whatever became of it."""

    spec: StageSpec  # the stage as it ran, also where it is taken over from an earlier run
    status: Status = "failed"
    failure: FailureKind | None = None  # None where the stage is ok, or has not run
    reason: str = ""  # one line: why it isn't ok, or what is odd
    description: str = ""  # what ran, in a line for a person
    execution: Execution | None = None  # what ran, as properties; None where the stage never answered
    net_layout: Order | None = None  # in which the stage took the net; None where it chose no layout
    compile_facts: CompileFacts | None = None  # None where nothing was compiled or tuned
    searches_asked: list[SearchAsked] = field(default_factory=list)  # who was asked for the fastest algorithm
    details: dict[str, Any] = field(default_factory=dict)  # free-form, to be shown and not read
    start_seconds: float | None = None  # from the process's birth to the workload being ready
    build_seconds: float | None = None
    first_call_seconds: float | None = None
    calibration: Calibration | None = None  # None where nothing was chosen by looking at images
    warm_up: WarmUp | None = None
    accuracy: Accuracy | None = None
    precision_faults: list[PrecisionFault] = field(default_factory=list)  # in the order of the attempts
    pairs: list[Pair] = field(default_factory=list)  # against the baseline, one per trial
    latencies: list[Seconds] = field(default_factory=list)  # seconds, a synchronisation after each call
    latency_steady: bool | None = None  # single calls were steady before they were kept; None where nobody looked
    host_latencies: list[Seconds] = field(default_factory=list)  # seconds, from pinned host memory and back
    host_path: list[HostPath] = field(default_factory=list)  # one move after another; empty where none was measured
    host_path_left_out: str = ""  # why none was
    memory: Memory | None = None
    memory_shortage: MemoryShortage | None = None  # None where memory did not run out, or nobody could tell
    energy: Energy | None = None
    profile: Profile | None = None
    diagnostics: Diagnostics | None = None
    artefacts: list[Artefact] = field(default_factory=list)
    warnings: list[RunWarning] = field(default_factory=list)
    log: str | None = None  # path within the run's folder
    log_tail: str = ""

    @property
    def name(self) -> str:
        """The name of the stage."""
        return self.spec.name

    @property
    def usable(self) -> bool:
        """Whether it may be ranked: right, and measured."""
        return self.status == "ok" and bool(self.pairs)

    @property
    def setup_seconds(self) -> float:
        """Build and first call: what a stage costs before its second image."""
        return (self.build_seconds or 0.0) + (self.first_call_seconds or 0.0)

    @property
    def precision(self) -> Precision | None:
        """Of its matrix work; None where nobody knows."""
        return self.execution.precision if self.execution else None


@dataclass(frozen=True)
class RunRecord:
    """A whole run: the request, the machine, and one record per stage in the ladder's order."""

    started_at: str  # ISO 8601 with offset
    command: str  # what the user typed
    config: RunConfig
    environment: Environment | None = None
    measured_peaks: MeasuredPeaks | None = None
    reference: Reference | None = None
    described_by: str | None = None  # the job of the same sweep that found out those three; None where this run did
    baseline: str = EAGER  # that every stage was interleaved with
    baseline_host_latencies: list[float] = field(default_factory=list)  # of a baseline that is no stage of the run
    aa_pairs: list[Pair] = field(default_factory=list)  # A/A: the baseline against itself
    stages: list[StageRecord] = field(default_factory=list)
    head_to_head: list[Pair] = field(default_factory=list)  # the fastest stage (as A) against its contenders
    drift: float | None = None  # of the baseline over the run: last samples' median over the first's, minus 1
    warnings: list[RunWarning] = field(default_factory=list)
    code_sha256: str | None = None  # of the program's own sources
    data_sha256: str | None = None  # of the user's images and labels; None where they come with a package
    winner: str | None = None  # the stage that the goal names; None where none is named, or the run has not finished
    seconds: float = 0.0  # wall time of the whole run
    finished: bool = False  # False in what an interrupted run leaves
    schema_version: int = SCHEMA_VERSION

    @property
    def batch_size(self) -> int:
        """Images per call."""
        return self.config.data.batch_size

    @property
    def words(self) -> Words:
        """What its data are called: images, or volumes."""
        return words_for(self.reference.spatial_dims if self.reference else None, self.config.data.name)
