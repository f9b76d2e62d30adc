"""What a run leaves behind: frozen dataclasses, written to results.json and read again. Units stand in the names.

Raw samples are kept; every statistic is computed on reading (`pipeline.stats.intervals`). This module imports no
torch: the parent process and the report need none.

History of the schema:
    1: the first.
    2: Reference.layers and StageRecord.diagnostics; records of 1 are read as having neither.
    3: bytes by the GPU's counters, searches, growth with the image, channels of layers, and how a memory timeline was
       watched; older records are read as having none.
    4: the field's usual names; older ones are translated (`pipeline.records.migrations`).
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.records.diagnostics import Diagnostics, LayerWork

SCHEMA_VERSION = 4

Status = Literal["ok", "failed", "inaccurate", "timeout", "skipped"]
KernelClass = Literal["convolution", "matmul", "pointwise", "normalisation", "layout change", "copy", "pool", "other"]


@dataclass(frozen=True)
class RunWarning:
    """Something that a reader must know about a measurement, and what to do about it."""

    name: str  # such as "clocks disagree", "unsteady", "throttled": a fixed word to search for
    text: str  # what was seen, with its figure
    remedy: str  # what to do


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


@dataclass(frozen=True)
class MeasuredPeaks:
    """The most that this device gave at the start of the run; None where it has no such unit."""

    tflops: dict[str, float]  # "fp32", "tf32", "fp16", "bf16", "fp8" to 10^12 FLOP/s, large matmul, random data
    bandwidth_bytes_per_s: float  # large device copy, read plus write
    pinned_copy_bytes_per_s: float | None  # host to device
    pageable_copy_bytes_per_s: float | None
    launch_us: float | None  # of an empty kernel, back to back


@dataclass(frozen=True)
class Reference:
    """The untouched fp32 net (TF32 off), against which every answer is checked."""

    flops_per_image: int  # 2 FLOP per multiply-add, torch.utils.flop_counter
    parameters: int
    weights_bytes: int
    weights_sha256: str | None
    repeat_relative_l2: float  # the same batch twice: the net's own noise
    batch_relative_l2: float  # each image alone against all at once
    fp64_relative_l2: float | None  # against the same net in fp64, where it fits
    minimal_bytes_per_image: int  # fp32 activations of every layer read and written once, for the roofline
    images: list[str]  # where the images come from
    labels: str | None  # what the labels are; None without labels
    layers: list[LayerWork] = field(default_factory=list)  # in the order in which they run


@dataclass(frozen=True)
class Accuracy:
    """The stage's logits against the reference's, on real images."""

    relative_l2: float  # ||out - ref|| / ||ref||
    largest_error: float  # max |out - ref|
    reference_spread: float  # standard deviation of the reference's logits
    flipped_share: float  # share of pixels whose class differs
    flipped_margin: float | None  # largest reference margin (top-1 minus top-2 logit) among flipped pixels
    nan_share: float  # share of logits that are NaN or infinite
    one_class: bool  # every pixel has one class although the reference has more
    dice: list[float] | None  # per class, against the labels
    iou: list[float] | None
    reference_dice: list[float] | None
    reference_iou: list[float] | None
    images: int  # how many were compared


@dataclass(frozen=True)
class Sample:
    """One timed stretch of calls, back to back between two device-wide synchronisations."""

    calls: int
    seconds: float  # wall time of the whole sample
    device_seconds: float | None  # the same by CUDA events; None on a CPU
    retries: int = 0  # how often it was measured again because something compiled or allocated
    clock_mhz: int | None = None  # SM clock after the sample
    throttle_reasons: list[str] = field(default_factory=list)

    @property
    def per_call(self) -> float:
        """Seconds per call."""
        return self.seconds / self.calls


@dataclass(frozen=True)
class Block:
    """Four samples in the order ABBA or BAAB; A is the baseline."""

    order: Literal["ABBA", "BAAB"]
    baseline: tuple[Sample, Sample]
    stage: tuple[Sample, Sample]


@dataclass(frozen=True)
class Pair:
    """Two workers that took turns: one launch of each."""

    baseline: str  # name of A
    stage: str  # name of B
    blocks: list[Block]
    alternated: bool = False  # they did not fit in memory together, so processes alternated


@dataclass(frozen=True)
class WarmUp:
    """How the stage came to rest before it was measured."""

    calls: int
    seconds: float
    steady: bool


@dataclass(frozen=True)
class Memory:
    """Bytes; None where this device doesn't say."""

    allocated_peak_bytes: int | None  # torch's allocator, peak of one call
    reserved_peak_bytes: int | None
    process_bytes: int | None  # the process as the device sees it, with the context
    context_bytes: int | None  # the process before its first tensor
    weights_bytes: int
    host_peak_bytes: int  # peak resident memory of the process


@dataclass(frozen=True)
class Energy:
    """The difference of NVML's total energy over a stretch of calls."""

    joules: float
    seconds: float
    images: int
    idle_watts: float


@dataclass(frozen=True)
class KernelRow:
    """All launches of one kernel (on a CPU: of one operator) in the profiled calls."""

    name: str
    kind: KernelClass
    launches_per_call: float
    seconds_per_call: float


@dataclass(frozen=True)
class Profile:
    """A separate pass under the profiler; never the source of the headline."""

    calls: int
    wall_seconds_per_call: float  # under the profiler
    busy_share: float | None  # of the wall time in which some kernel ran; None on a CPU
    launches_per_call: float
    kernels: list[KernelRow]
    trace: str | None  # path within the run's folder, Chrome trace for Perfetto


@dataclass(frozen=True)
class Artefact:
    """A file that the stage leaves, with what is needed to trust it."""

    path: str  # within the run's folder
    kind: str  # "onnx", "torchscript", "inductor code", ...
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Tolerance:
    """How far a stage may be from fp32, and why so far."""

    relative_l2: float
    flipped_share: float
    reason: str


@dataclass(frozen=True)
class StageRecord:
    """One stage of one run, whatever became of it."""

    name: str
    summary: str
    adds: str  # what it adds to the rung before; empty outside a ladder
    tolerance: Tolerance
    options: dict[str, Any]  # what was asked for
    status: Status = "failed"
    reason: str = ""  # one line: why it isn't ok, or what is odd
    legacy: bool = False
    description: str = ""  # what really ran
    details: dict[str, Any] = field(default_factory=dict)
    start_seconds: float | None = None  # from the process's birth to the workload being ready
    build_seconds: float | None = None
    first_call_seconds: float | None = None
    warm_up: WarmUp | None = None
    accuracy: Accuracy | None = None
    pairs: list[Pair] = field(default_factory=list)  # against the baseline, one per launch
    latencies: list[float] = field(default_factory=list)  # seconds, a synchronisation after each call
    host_latencies: list[float] = field(default_factory=list)  # seconds, from pinned host memory and back
    memory: Memory | None = None
    energy: Energy | None = None
    profile: Profile | None = None
    diagnostics: Diagnostics | None = None
    artefacts: list[Artefact] = field(default_factory=list)
    warnings: list[RunWarning] = field(default_factory=list)
    log: str | None = None  # path within the run's folder
    log_tail: str = ""

    @property
    def usable(self) -> bool:
        """Whether it may be ranked: right, and measured."""
        return self.status == "ok" and bool(self.pairs)


@dataclass(frozen=True)
class RunRecord:
    """A whole run: the question, the machine, and one record per stage in the ladder's order."""

    started_at: str  # ISO 8601 with offset
    command: str  # what the user typed
    preset: str
    config: dict[str, Any]  # resolved, as composed
    environment: Environment | None = None
    measured_peaks: MeasuredPeaks | None = None
    reference: Reference | None = None
    baseline: str = "eager"
    second_baseline: str = "amp"  # what people run today
    aa_pairs: list[Pair] = field(default_factory=list)  # A/A: the baseline against itself
    stages: list[StageRecord] = field(default_factory=list)
    head_to_head: list[Pair] = field(default_factory=list)  # the fastest stage (as A) against its contenders
    drift: float | None = None  # of the baseline over the run: last samples' median over the first's, minus 1
    warnings: list[RunWarning] = field(default_factory=list)
    seconds: float = 0.0  # wall time of the whole run
    finished: bool = False  # False in what an interrupted run leaves
    schema_version: int = SCHEMA_VERSION

    @property
    def batch_size(self) -> int:
        """Images per call."""
        return int(self.config["data"]["batch_size"])
