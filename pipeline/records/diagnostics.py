"""The profile of a stage and further passes, which explain its time and memory.

Units are in the names; "per call" is one batch.
"""

from dataclasses import dataclass, field
from typing import Literal

KernelClass = Literal["convolution", "matmul", "pointwise", "normalisation", "layout change", "copy", "pool", "other"]
LayersSource = Literal[
    "profile",  # annotations around each layer of the stage
    "uncaptured",  # the replayed kernels were also launched one by one, with annotations
    "layer order",  # the order of the layers is unique, so the n-th matrix kernel belongs to the n-th layer
]
BytesSource = Literal[
    "hardware counters",  # of the GPU
    "operators",  # inputs and outputs of torch's operators, each once
    "Inductor",  # reads and writes of its generated kernels, by its own count
    "rewritten graph",  # reads and writes of each operation
]
LayoutSource = Literal["trace", "ONNX graph", "generated code"]
Searcher = Literal["cuDNN", "cuDNN for ONNX Runtime", "Inductor", "Inductor's templates", "own kernels"]
PlaceKind = Literal[
    "layer",
    "gap",  # between layers, before the first or after the last
    "node",  # of an exported graph
    "operators",  # of the same generated kernel
]
SearchUnit = Literal[
    "problems",  # distinct convolutions or matrix products
    "nodes",  # of a graph
    "candidates",  # timed kernels or tiles
]
Watched = Literal[
    "layers",  # allocator statistics before and after every layer
    "allocations",  # every entry of the allocator's history
    "nothing allocated",  # a captured graph's pool, or another runtime's memory
    "ends",  # start, peak and end only: this torch keeps no history
]
Topic = Literal[
    "layers", "memory timeline", "hardware counters", "time split", "fusion", "layout", "scaling", "searches"
]
NoteCode = Literal[
    "failed",  # with an error, which the text quotes
    "hidden layers",  # the runtime does not map operators to layers
    "kernels differ",  # the replayed kernels differ from those launched one by one
    "ambiguous order",  # some layers can run in another order
    "no allocator statistics",  # not available on this device
    "not read",  # counters: no tool, no permission, or no answer
]

SKIP = "skip connections"  # concatenations outside modules; a module's path has no space


@dataclass(frozen=True)
class KernelRow:
    """The launches of one kernel (on a CPU: operator) in the profiled calls."""

    name: str
    kind: KernelClass
    launches_per_call: float
    seconds_per_call: float


@dataclass(frozen=True)
class Profile:
    """A separate pass under the profiler; the headline does not use it."""

    calls: int
    wall_seconds_per_call: float  # under the profiler
    busy_share: float | None  # of the wall time with a running kernel; None on a CPU
    launches_per_call: float
    kernels: list[KernelRow]
    trace: str | None  # path in the run's folder of a Chrome trace (Perfetto)


@dataclass(frozen=True)
class LayerWork:
    """The work of one layer of the unchanged network for one image, in any precision."""

    name: str  # module path such as "encoder.0.3"; SKIP, or "" for the rest between layers
    kind: str  # the module's class, such as "Conv2d"
    level: str  # "encoder 0", "bottleneck", "decoder 1", "head", or the path's first part
    flops: int  # 2 per multiply-add (torch.utils.flop_counter)
    read_elements: int  # each input once
    written_elements: int
    weight_elements: int  # read once per call, not per image
    in_channels: int = 0  # of a convolution or a linear layer; else 0
    out_channels: int = 0
    groups: int = 1  # of a convolution


@dataclass(frozen=True)
class LayerTime:
    """The time of one layer in the profile; `name` as in LayerWork, "" for the rest."""

    name: str
    seconds_per_call: float
    launches_per_call: float


@dataclass(frozen=True)
class TimeSplit:
    """The parts of a profiled call's wall time; those of the host overlap the GPU's."""

    wall_seconds: float
    device_seconds: float | None  # with a running kernel; None on a CPU
    launch_seconds: float  # in driver calls that start work
    framework_seconds: float  # in the framework's operators, without launches
    interpreter_seconds: float  # in neither operators nor launches
    waiting_seconds: float  # in synchronisation


@dataclass(frozen=True)
class BatchGrowth:
    """The time of a call at smaller batches; overhead does not grow with the batch."""

    images: list[int]
    seconds: list[float]  # per call, median of a few samples


@dataclass(frozen=True)
class ImageGrowth:
    """The time of a call on smaller images; overhead does not grow with the image."""

    pixels: list[int]  # of an image, rising
    seconds: list[float]  # per call, minimum of some samples


@dataclass(frozen=True)
class LayoutChange:
    """A kernel, operator or node that converts between NCHW and NHWC."""

    name: str
    where: str | None  # "decoder.0.0", or "between decoder.0.0 and decoder.0.3"; None: unknown
    source: LayoutSource
    times_per_call: float
    seconds_per_call: float | None  # None: known from a graph only
    where_kind: PlaceKind | None = None  # kind of `where`


@dataclass(frozen=True)
class CountedBytes:
    """The GPU's hardware counters of one call, in which each kernel ran alone."""

    read_bytes: int  # from device memory
    written_bytes: int  # to device memory
    cache_bytes: int  # requested from the L2 cache
    kernels: int
    alike: int  # kernels at the same position in the profile
    tool: str  # with its version
    by_kernel: dict[str, int]  # reads and writes, of kernels whose launches were all counted

    @property
    def moved_bytes(self) -> int:
        """The bytes to and from device memory."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True)
class FusedKernel:
    """A generated kernel, with the operators that it fuses."""

    name: str
    operators: list[str]  # ATen names, in order
    direction: str  # "vertical" (each feeds the next), "horizontal" (siblings), "both", "single" or "unknown"
    source: str  # path in the run's folder of its source file
    turns_layout: bool = False  # input and output have different layouts
    launches_per_call: int = 0  # in the generated program


@dataclass(frozen=True)
class Fusion:
    """The kernels that are left to launch, and the operators fused into each."""

    kernels_per_call: float
    bytes_per_call: int | None  # through device memory; None: not countable
    bytes_source: BytesSource | None  # None: not counted
    bytes_unknown: str = ""  # reason for an unknown count
    kernels: list[FusedKernel] = field(default_factory=list)
    graphs: list[str] = field(default_factory=list)  # paths of the compiler's graphs as text


@dataclass(frozen=True)
class MemoryHolder:
    """A block of memory in use at the peak, and the layers whose output it holds."""

    layers: list[str]  # several if a layer works in place
    size_bytes: int


@dataclass(frozen=True)
class MemoryTimeline:
    """The allocated bytes during one call, and their use."""

    seconds: list[float]  # since the start of the call
    allocated_bytes: list[int]
    weights_bytes: int | None  # of the stage's copy; None: unknown
    activations_bytes: int  # at the peak, beyond held bytes and workspace
    workspace_bytes: int | None  # of libraries at the peak; None: not separable
    held_bytes: int  # between calls: weights, buffers, captured graphs
    context_bytes: int | None
    peak_layer: str | None = None  # that ran at the peak; None: between layers, or not watched
    holders: list[MemoryHolder] = field(default_factory=list)  # at the peak, largest first
    holders_left_out: int = 0  # smaller ones that are not listed
    # "uncaptured": the replayed kernels, launched one by one. A replay allocates nothing, as the graph's pool holds the
    # activations and the workspace between calls.
    call: Literal["own", "uncaptured"] = "own"
    watched: Watched = "layers"


@dataclass(frozen=True)
class SearchAsked:
    """A search for the fastest algorithm that the stage requests."""

    searcher: Searcher
    method: str | None = None  # as in SearchCount


@dataclass(frozen=True)
class SearchCount:
    """The number of searches for the fastest algorithm at the stage's shape."""

    searcher: Searcher
    unit: SearchUnit  # of `count`
    count: int
    method: str | None = None  # the searcher's name for it, such as "exhaustive" (ONNX Runtime)


@dataclass(frozen=True)
class Note:
    """A missing or limited diagnosis, and the reason."""

    topic: Topic
    code: NoteCode
    text: str  # the reason, without the topic


@dataclass(frozen=True)
class PrecisionFault:
    """The first module at which half precision fails, on one batch."""

    module: str  # path; "" for the network itself
    level: str  # as in LayerWork
    kind: Literal["overflow", "error jump"]  # beyond the range of half precision, or lost precision
    precision: Literal["fp16", "bf16"]
    magnitude: float  # maximum of its output in fp32
    input_magnitude: float | None  # of its input; None: no tensor
    error: float | None  # relative L2 of its output; None: overflow
    error_before: float  # maximum of the modules before it
    kept: bool = False  # in fp32 in the next attempt


@dataclass(frozen=True)
class Diagnostics:
    """The diagnoses of one stage."""

    layers: list[LayerTime] = field(default_factory=list)
    layers_source: LayersSource | None = None  # None: `layers` is empty
    split: TimeSplit | None = None
    growth: BatchGrowth | None = None
    image_growth: ImageGrowth | None = None  # on a CPU
    layout: list[LayoutChange] = field(default_factory=list)
    fusion: Fusion | None = None
    timeline: MemoryTimeline | None = None
    counted: CountedBytes | None = None
    searches: list[SearchCount] = field(default_factory=list)  # for the fastest algorithm
    notes: list[Note] = field(default_factory=list)

    def notes_on(self, topic: Topic) -> list[Note]:
        """Return the notes of one topic."""
        return [note for note in self.notes if note.topic == topic]


LARGEST = {"fp16": 65504.0, "bf16": 3.3895e38}  # largest values: IEEE 754 binary16, and bfloat16


def fault_text(found: PrecisionFault) -> str:
    """Return text such as "first at up.0.conv: fp32 reaches 1.2e+05 there, and fp16 holds no more than 65504"."""
    where = f"first at {found.module or 'the network itself'}"
    if found.kind == "overflow":
        largest = LARGEST[found.precision]
        reached = max(found.magnitude, found.input_magnitude or 0.0)
        if reached > largest:
            return f"{where}: fp32 reaches {reached:.3g} there, and {found.precision} holds no more than {largest:.6g}"
        return f"{where}: {found.precision} overflows within it, where fp32 reaches {reached:.3g}"
    jump = f"{found.error:.2g} (relative L2) in {found.precision}, {found.error_before:.2g} before it"
    return f"{where}: its error is {jump}"
