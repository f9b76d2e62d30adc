"""The changes between NCHW and NHWC, or NCDHW and NDHWC, in one call: place, count and cost."""

import math
from collections.abc import Sequence
from pathlib import Path

from pipeline.profiling.profiler import classify, grouped
from pipeline.records.chrome_trace import GPU_WORK, Annotations, TraceEvent, launches, of
from pipeline.records.diagnostics import LayoutChange, PlaceKind
from pipeline.records.run_record import Order

Place = tuple[str | None, PlaceKind | None]  # its name, and what that names
COPIES = {"aten::copy_", "aten::clone"}
AXES: dict[int, dict[Order, str]] = {  # by the number of axes: the names of both orders
    4: {"NCHW": "NCHW", "NHWC": "NHWC"},
    5: {"NCHW": "NCDHW", "NHWC": "NDHWC"},
}
MOVES: dict[tuple[int, ...], tuple[Order, Order]] = {  # permutations of an exported graph
    (0, 2, 3, 1): ("NCHW", "NHWC"),
    (0, 3, 1, 2): ("NHWC", "NCHW"),
    (0, 2, 3, 4, 1): ("NCHW", "NHWC"),
    (0, 4, 1, 2, 3): ("NHWC", "NCHW"),
}


def trace_changes(events: list[TraceEvent], calls: int, spots: dict[int, str] | None = None) -> list[LayoutChange]:
    """Return the changes of layout in a trace with the shapes and strides of the operators' inputs."""
    # A copy counts if the channels of its source and its target lie differently; a kernel if its name says so.
    layers, started = Annotations(events), launches(events)
    kernels = of(events, *GPU_WORK)
    found: list[tuple[str, Place, float]] = []
    inside: set[int] = set()
    for event in of(events, "cpu_op"):
        if turned := _turned(event):
            work = [
                kernel
                for kernel in kernels
                if (launch := started.get(kernel.correlation)) and launch.thread == event.thread
                if event.start_us <= launch.start_us < event.end_us
            ]
            inside |= {kernel.index for kernel in work}
            microseconds = sum(kernel.duration_us for kernel in work) if kernels else event.duration_us
            found.append((f"copy, {turned}", _place(layers.around(event), "between layers"), microseconds))
    for kernel in kernels:
        if kernel.index not in inside and classify(kernel.name) == "layout change":
            launch = started.get(kernel.correlation)
            layer = layers.around(launch) if launch else None
            found.append((kernel.name, _place(layer, (spots or {}).get(kernel.index)), kernel.duration_us))
    return _grouped(found, calls)


def _place(layer: str | None, gap: str | None) -> Place:
    """Return the place of something: in a layer, else in a gap, else unknown."""
    return (layer, "layer") if layer else (gap, "gap") if gap else (None, None)


def _turned(event: TraceEvent) -> str | None:
    """Return how a copy turns images or volumes, such as "NCHW → NHWC"; None if it keeps their channels' place."""
    strides, shapes = event.input_strides, event.input_shapes
    if event.name not in COPIES or len(strides) < 2 or len(shapes) < 2:
        return None
    target, source = (order(shape, stride) for shape, stride in zip(shapes[:2], strides[:2], strict=True))
    return _move(source, target, len(shapes[0])) if source and target and source != target else None


def _move(source: Order, target: Order, axes: int) -> str:
    return f"{AXES[axes][source]} → {AXES[axes][target]}"


def order(shape: Sequence[int], strides: Sequence[int]) -> Order | None:
    """Return "NCHW" or "NHWC" of images or volumes; None of what is neither, or both, as with one channel."""
    if len(shape) not in AXES or len(strides) != len(shape) or shape[1] == 1 or math.prod(shape[2:]) == 1:
        return None
    if strides[1] == 1:
        return "NHWC"
    return "NCHW" if strides[-1] == 1 else None


def _grouped(found: list[tuple[str, Place, float]], calls: int) -> list[LayoutChange]:
    times = grouped(((name, place), microseconds) for name, place, microseconds in found)
    changes = [
        LayoutChange(name, where, "trace", len(each) / calls, sum(each) / 1e6 / calls, kind)
        for (name, (where, kind)), each in times.items()
    ]
    return sorted(changes, key=lambda change: -(change.seconds_per_call or 0.0))


def onnx_changes(path: Path) -> list[LayoutChange]:
    """Return the Transpose nodes of a graph that move channels of images or volumes; a graph tells no cost."""
    import onnx

    found = []
    for node in onnx.load(str(path), load_external_data=False).graph.node:
        axes = next((tuple(entry.ints) for entry in node.attribute if entry.name == "perm"), ())
        if node.op_type == "Transpose" and axes in MOVES:
            kind: PlaceKind | None = "node" if node.name else None
            turn = f"Transpose, {_move(*MOVES[axes], len(axes))}"
            found.append(LayoutChange(turn, node.name or None, "ONNX graph", 1.0, None, kind))
    return found
