"""Why a stage takes the time and the memory that it takes: the part of a record that explains. Imports no torch.

Units stand in the names; "per call" is one batch.
"""

from dataclasses import dataclass, field

# The keys of `Diagnostics.searches`: who searched, and what is counted of it.
SEARCH_CUDNN = "cuDNN: problems"  # distinct convolutions, each timed once with all of cuDNN's algorithms
SEARCH_TEMPLATES = "Inductor's templates: problems"  # convolutions and products, each with candidates of its own
SEARCH_INDUCTOR = "Inductor: candidates timed"
SEARCH_ONNX_RUNTIME = "cuDNN for ONNX Runtime, {search}: nodes"  # convolutions, alike or not; search: algo_search
SEARCH_OWN = "own kernels: candidates timed"


SKIP = "skip connections"  # concatenations, which no module of a net does; no module's path has a space in it


@dataclass(frozen=True)
class LayerWork:
    """What one layer of the untouched net has to do for one image, in any precision."""

    name: str  # the module's path in the net, such as "encoder.0.3"; SKIP, or "" for what else lies between layers
    kind: str  # the module's class, such as "Conv2d"
    level: str  # where in the net: "encoder 0", "bottleneck", "decoder 1", "head", or the path's first part
    flops: int  # 2 per multiply-add, as torch.utils.flop_counter counts
    read_elements: int  # of its inputs, each once
    written_elements: int
    weight_elements: int  # read once per call, not per image
    in_channels: int = 0  # of a convolution, or a linear layer's features; 0 for anything else, or unknown
    out_channels: int = 0
    groups: int = 1  # of a convolution


@dataclass(frozen=True)
class LayerTime:
    """What the profile gave one layer; `name` is a LayerWork's, or "" for what belongs to none."""

    name: str
    seconds_per_call: float
    launches_per_call: float


@dataclass(frozen=True)
class TimeSplit:
    """Where the wall time of a profiled call went; the parts but the last are on the host, and overlap the GPU's."""

    wall_seconds: float
    device_seconds: float | None  # some kernel ran; None on a CPU
    launch_seconds: float  # inside calls to the driver that start work
    framework_seconds: float  # inside the framework's operators, without those launches
    interpreter_seconds: float  # inside the call, but in no operator and no launch
    waiting_seconds: float  # in synchronisation
    queue_lead_seconds: float | None  # median time between a launch and the start of what it launched


@dataclass(frozen=True)
class BatchGrowth:
    """Time of one call at smaller batches: what is bound by overhead does not grow with the batch."""

    images: list[int]
    seconds: list[float]  # per call, the median of a few samples


@dataclass(frozen=True)
class ImageGrowth:
    """Time of one call of the whole batch on smaller images, and on its own: overhead does not grow with the image."""

    pixels: list[int]  # of an image, rising
    seconds: list[float]  # per call, the least of some


@dataclass(frozen=True)
class LayoutChange:
    """One kernel, operator or node that turns NCHW into NHWC or back."""

    name: str
    where: str  # the layer or node it serves; "unknown" where the profile can't say
    source: str  # "trace", "ONNX graph" or "generated code"
    times_per_call: float
    seconds_per_call: float | None  # None where only a graph says that it is there


@dataclass(frozen=True)
class CountedBytes:
    """What the GPU's own counters saw of one call, in which each kernel ran by itself."""

    read_bytes: int  # from device memory
    written_bytes: int  # to device memory
    cache_bytes: int  # asked of the L2 cache
    kernels: int
    alike: int  # of those, the ones that the profile has at the same place
    tool: str  # that read them, with its version
    by_kernel: dict[str, int]  # both, by the profile's kernels all of whose launches were counted

    @property
    def moved_bytes(self) -> int:
        """To and from device memory."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True)
class FusedKernel:
    """A kernel that a compiler wrote, with the operators that it does in one pass."""

    name: str
    operators: list[str]  # in order, as ATen names them
    direction: str  # "vertical" (each feeds the next), "horizontal" (siblings), "both", "single" or "unknown"
    source: str  # path within the run's folder of the file that holds it
    turns_layout: bool = False  # what it reads and what it writes lie in different orders
    launches_per_call: int = 0  # by the program that calls it


@dataclass(frozen=True)
class Fusion:
    """How much is left to launch, and what went into one kernel."""

    kernels_per_call: float
    bytes_per_call: int | None  # through device memory; None where it can't be counted
    bytes_from: str  # "operators' inputs and outputs", "hardware counters", or why it is unknown
    kernels: list[FusedKernel] = field(default_factory=list)
    graphs: list[str] = field(default_factory=list)  # paths of the compiler's graphs as text


@dataclass(frozen=True)
class MemoryTimeline:
    """Allocated bytes through one call, and what they are."""

    seconds: list[float]  # since the call began
    allocated_bytes: list[int]
    weights_bytes: int | None  # of the stage's own copy; None where nobody knows which it is
    activations_bytes: int  # at the peak, above what is held between calls and the workspace
    workspace_bytes: int | None  # at the peak, what libraries took to work in; None where it can't be told apart
    held_bytes: int  # between calls: weights, buffers, captured graphs
    context_bytes: int | None
    peak_holders: list[str] = field(default_factory=list)  # the largest blocks alive at the peak, with what made them
    source: str = ""  # which call this is of, and how it was watched; empty in records from before there was a choice
    # Whether that call launched one by one what the stage replays. The stage's own call then allocates nothing: the
    # graph's pool, which is in reserve, holds the activations and the workspace between calls, too.
    replayed: bool = False


@dataclass(frozen=True)
class Diagnostics:
    """All that explains one stage."""

    layers: list[LayerTime] = field(default_factory=list)
    layers_from: str = ""  # "its own profile", its twin, or the order of the eager net's layers
    split: TimeSplit | None = None
    growth: BatchGrowth | None = None
    image_growth: ImageGrowth | None = None  # on a CPU
    layout: list[LayoutChange] = field(default_factory=list)
    fusion: Fusion | None = None
    timeline: MemoryTimeline | None = None
    counted: CountedBytes | None = None
    searches: dict[str, int] = field(default_factory=dict)  # for the fastest algorithm: SEARCH_… to how many
    notes: list[str] = field(default_factory=list)  # what could not be found out, and why
