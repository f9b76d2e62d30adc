"""The layer of each kernel of a runtime that hides its layers, by the order of the layers with matrix work.

A layer that needs the answer of another runs after it in every runtime. Where each layer with matrix work needs all
those before it, as in a U-Net without branches, there is one order alone, and the n-th matrix kernel of a call is the
n-th layer's: for compilers, for other runtimes and for graphs that are replayed, as long as each layer is one kernel.
"""

import re
from dataclasses import dataclass, field

from torch import Tensor, fx, nn

from pipeline.compiler.graph.fx_graph import is_matrix_work, module_of, name_by_first_paths
from pipeline.compiler.network_calls import exported_program
from pipeline.profiling.layers import BETWEEN, summed
from pipeline.profiling.profiler import classify, joins
from pipeline.records.chrome_trace import GPU_WORK, TraceEvent, of
from pipeline.records.diagnostics import SKIP, LayerTime

MATRIX = ("convolution", "matmul")
TRANSPOSED = re.compile(r"aten\.conv_transpose")
POOLS = re.compile(r"aten\.(adaptive_)?(max|avg)_pool\d?d?\.")
NO_LAYERS = ("copy", "layout change")  # classes of work that belong to no layer of the network


@dataclass
class ComputeLayer:
    """A layer with matrix work, in the order in which the eager network runs them."""

    layer: str
    certain: bool  # it can run at no other place
    transposed: bool = False  # a transposed convolution, which cuDNN does as another one's gradient: "dgrad"
    pools: list[str] = field(default_factory=list)  # the pooling layers between it and the next one


@dataclass(frozen=True)
class Placed:
    """A kernel, the layer that owns it, and its place in the call."""

    event: TraceEvent
    owner: str
    spot: str


class OrderError(Exception):
    """The order of the layers doesn't tell the layers of these kernels; the text is one line."""


def compute_layers(net: nn.Module, *batch: Tensor) -> list[ComputeLayer]:
    """Return the layers with matrix work as torch.export finds them, and whether each has only one place."""
    graph = exported_program(net, batch).graph
    name_by_first_paths(graph, net)
    return ranked(graph)


def ranked(graph: fx.Graph) -> list[ComputeLayer]:
    """Return the layers with matrix work of an exported graph."""
    # Of n layers the i-th has one place if i of them must come before it and n - 1 - i after it.
    found: list[ComputeLayer] = []
    needed: dict[fx.Node, int] = {}  # by node, as bits, the layers that it needs, itself included
    own: list[int] = []
    for node in graph.nodes:
        needed[node] = 0
        for source in node.all_input_nodes:
            needed[node] |= needed[source]
        target = f"{node.target}."
        if is_matrix_work(node):
            needed[node] |= 1 << len(found)
            own.append(needed[node])
            found.append(ComputeLayer(module_of(node), certain=False, transposed=bool(TRANSPOSED.match(target))))
        elif found and POOLS.match(target):
            found[-1].pools.append(module_of(node))
    for index, layer in enumerate(found):
        before = own[index].bit_count() - 1
        after = sum(bool(bits >> index & 1) for bits in own[index + 1 :])
        layer.certain = before == index and after == len(found) - 1 - index
    return found


def placed(events: list[TraceEvent], calls: int, order: list[ComputeLayer]) -> list[Placed]:
    """Return every kernel of the profile with its layer; OrderError if calls or kernels don't fit the layers."""
    # Work between two layers with matrix work, such as biases, counts for the first of the two. A pool, a
    # concatenation, a copy or a change of layout that is a kernel of its own does not.
    work = of(events, *GPU_WORK)
    if not work or len(work) % calls:
        raise OrderError(f"{len(work)} kernels in {calls} calls: no call is like another")
    length, found = len(work) // calls, []
    names = [event.name for event in work]
    if names != names[:length] * calls:
        raise OrderError("no call has the same kernels as another")
    for start in range(0, len(work), length):
        found += _one_call(work[start : start + length], order)
    return found


def _one_call(work: list[TraceEvent], order: list[ComputeLayer]) -> list[Placed]:
    classes = [classify(event.name) for event in work]
    matrix = sum(kind in MATRIX for kind in classes)
    if matrix != len(order):
        raise OrderError(f"{matrix} matrix kernels a call for {len(order)} layers with matrix work")
    reached, found = -1, []
    for event, kind in zip(work, classes, strict=True):
        if kind in MATRIX:
            reached += 1
            _check(event.name, order[reached])
        owner = _owner(event.name, kind, order[reached]) if reached >= 0 else BETWEEN
        found.append(Placed(event, owner, _spot(order, reached)))
    return found


def _check(kernel: str, layer: ComputeLayer) -> None:
    """Raise OrderError where cuDNN's name for the kernel says that it is for another kind of layer."""
    if (layer.transposed and "fprop" in kernel) or (not layer.transposed and "dgrad" in kernel):
        raise OrderError(f"{kernel[:60]} can't be for {layer.layer}")


def _owner(name: str, kind: str, layer: ComputeLayer) -> str:
    if joins(name):
        return SKIP
    if not layer.certain or kind in NO_LAYERS:
        return BETWEEN
    if kind == "pool":
        return layer.pools[0] if len(layer.pools) == 1 else BETWEEN
    return layer.layer


def _spot(order: list[ComputeLayer], reached: int) -> str:
    """Return the place in the call, as "between encoder.0.0 and encoder.0.3"; empty if no layer has one place."""
    before = [layer.layer for layer in order[: reached + 1] if layer.certain]
    after = [layer.layer for layer in order[reached + 1 :] if layer.certain]
    if before and after:
        return f"between {before[-1]} and {after[0]}"
    return f"after {before[-1]}" if before else f"before {after[0]}" if after else ""


def times(found: list[Placed], calls: int) -> list[LayerTime]:
    """Return the time of each layer."""
    return summed([(part.event, part.owner) for part in found], calls)
