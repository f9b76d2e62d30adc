"""What explains a stage's time and memory: its profile, and what passes of their own found out besides.

Units stand in the names; "per call" is one batch.
"""

from dataclasses import dataclass, field
from typing import Literal

KernelClass = Literal["convolution", "matmul", "pointwise", "normalisation", "layout change", "copy", "pool", "other"]
LayersSource = Literal[
    "profile",  # annotations around each layer of the stage itself
    "uncaptured",  # the stage replays kernels that were also launched one by one, with annotations
    "layer order",  # the layers can run in one order only, so the n-th matrix kernel is the n-th layer's
]
BytesSource = Literal[
    "hardware counters",  # of the GPU
    "operators",  # inputs and outputs of torch's operators, each once
    "Inductor",  # what its generated kernels read and write, by its own count
    "rewritten graph",  # what each operation of the rewritten graph reads and writes
]
LayoutSource = Literal["trace", "ONNX graph", "generated code"]
Searcher = Literal["cuDNN", "cuDNN for ONNX Runtime", "Inductor", "Inductor's templates", "own kernels"]
PlaceKind = Literal[
    "layer",
    "gap",  # between layers, before the first or after the last
    "node",  # of an exported graph
    "operators",  # that a generated kernel runs besides
]
SearchUnit = Literal[
    "problems",  # distinct convolutions or matrix products
    "nodes",  # of a graph, alike or not
    "candidates",  # kernels or tiles that were timed
]
Watched = Literal[
    "layers",  # allocator statistics before and after every layer
    "allocations",  # every entry of the allocator's history
    "nothing allocated",  # the history is empty: a captured graph's pool, or another runtime's own memory
    "ends",  # the call's beginning, peak and end alone: this torch keeps no history
]
Topic = Literal[
    "layers", "memory timeline", "hardware counters", "time split", "fusion", "layout", "scaling", "searches"
]
NoteCode = Literal[
    "failed",  # finding it out raised an error, which the text quotes
    "hidden layers",  # the runtime doesn't say which layer an operator is for
    "kernels differ",  # the replayed kernels aren't those that were launched one by one
    "ambiguous order",  # some layers could run in another order
    "no allocator statistics",  # this device's allocator keeps none
    "not read",  # counters: no tool, no permission, or no answer
]

SKIP = "skip connections"  # concatenations, which no module of a net does; no module's path has a space in it


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
    where: str | None  # such as "decoder.0.0", or "between decoder.0.0 and decoder.0.3"; None where nothing says
    source: LayoutSource
    times_per_call: float
    seconds_per_call: float | None  # None where only a graph says that it is there
    where_kind: PlaceKind | None = None  # what `where` names; None where it is None


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
    bytes_source: BytesSource | None  # who counted them; None where nobody could
    bytes_unknown: str = ""  # why they are unknown; empty where they are known
    kernels: list[FusedKernel] = field(default_factory=list)
    graphs: list[str] = field(default_factory=list)  # paths of the compiler's graphs as text


@dataclass(frozen=True)
class MemoryHolder:
    """A block of memory that was alive at the peak, and the layers whose output lies in it."""

    layers: list[str]  # more than one where a layer works in place
    size_bytes: int


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
    peak_layer: str | None = None  # that ran at the peak; None between layers, and where layers weren't watched
    holders: list[MemoryHolder] = field(default_factory=list)  # blocks alive at the peak, the largest first
    holders_left_out: int = 0  # smaller ones that are not listed
    # Which call it is of. "uncaptured" launches one by one what the stage replays. The stage's own call then allocates
    # nothing: the graph's pool, which is in reserve, holds the activations and the workspace between calls, too.
    call: Literal["own", "uncaptured"] = "own"
    watched: Watched = "layers"


@dataclass(frozen=True)
class SearchAsked:
    """Somebody that the stage asks to search for the fastest algorithm, counted or not."""

    searcher: Searcher
    method: str | None = None  # as SearchCount has it


@dataclass(frozen=True)
class SearchCount:
    """How many searches for the fastest algorithm somebody made for the stage's shape."""

    searcher: Searcher
    unit: SearchUnit  # of `count`
    count: int
    method: str | None = None  # as the searcher names it, such as ONNX Runtime's "exhaustive"


@dataclass(frozen=True)
class Note:
    """Something that could not be found out, or a limit of what was, and why."""

    topic: Topic
    code: NoteCode
    text: str  # the reason, without the topic


@dataclass(frozen=True)
class PrecisionFault:
    """The first module of a net at which half precision goes wrong, on one batch."""

    module: str  # its path in the net; "" for the net itself
    level: str  # where in the net, as LayerWork has it
    kind: Literal["overflow", "error jump"]  # a value that fp32 can hold and half precision can't, or lost precision
    precision: Literal["fp16", "bf16"]
    magnitude: float  # the largest of its output in fp32
    input_magnitude: float | None  # of its input; None where it takes no tensor
    error: float | None  # relative L2 of its output; None where it overflows
    error_before: float  # the largest of what ran before it
    kept: bool = False  # the next attempt kept it in fp32


@dataclass(frozen=True)
class Diagnostics:
    """All that explains one stage."""

    layers: list[LayerTime] = field(default_factory=list)
    layers_source: LayersSource | None = None  # how a kernel's layer was determined; None where `layers` is empty
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
        """The notes of one topic."""
        return [note for note in self.notes if note.topic == topic]


LARGEST = {"fp16": 65504.0, "bf16": 3.3895e38}  # that each can hold: IEEE 754 binary16, and bfloat16


def fault_text(found: PrecisionFault) -> str:
    """Such as "first at up.0.conv: fp32 reaches 1.2e+05 there, and fp16 holds no more than 65504"."""
    where = f"first at {found.module or 'the net itself'}"
    if found.kind == "overflow":
        largest = LARGEST[found.precision]
        reached = max(found.magnitude, found.input_magnitude or 0.0)
        if reached > largest:
            return f"{where}: fp32 reaches {reached:.3g} there, and {found.precision} holds no more than {largest:.6g}"
        return f"{where}: {found.precision} overflows within it, where fp32 reaches {reached:.3g}"
    jump = f"{found.error:.2g} (relative L2) in {found.precision}, {found.error_before:.2g} before it"
    return f"{where}: its error is {jump}"
