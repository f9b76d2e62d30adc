"""The layers of a network: which one is at work, what each has to do, and its share of the profiled time."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.conv import _ConvNd
from torch.profiler import record_function

from pipeline.compiler.graph.fx_graph import is_matrix_work, layers, module_of, name_by_first_paths
from pipeline.compiler.network_calls import exported_program
from pipeline.profiling.operators import Dispatched, Operator, flops
from pipeline.profiling.profiler import classify, grouped, joins
from pipeline.records.chrome_trace import GPU_WORK, LAYER, Annotations, TraceEvent, launches, nested, of
from pipeline.records.diagnostics import SKIP, LayerTime, LayerWork

Enter = Callable[[str, nn.Module], None]  # the layer's path and the layer
Leave = Callable[[str, nn.Module, tuple[object, ...], object], None]  # and its positional inputs and its output
BETWEEN = ""  # the name of what belongs to no layer and is no skip connection: padding, casts
MATRIX = ("convolution", "matmul")
TRANSPOSED = re.compile(r"aten\.conv_transpose")
POOLS = re.compile(r"aten\.(adaptive_)?(max|avg)_pool\d?d?\.")
NO_LAYERS = ("copy", "layout change")  # classes of work that belong to no layer of the network


@dataclass(frozen=True)
class Placed:
    """A kernel or an operator, the layer that owns it, and its place in the call, if known."""

    event: TraceEvent
    owner: str
    spot: str = ""


@contextmanager
def hooked(
    parts: Iterable[tuple[str, nn.Module]], enter: Enter | None = None, leave: Leave | None = None
) -> Iterator[None]:
    """Call `enter` before each of the modules, given by name, runs and `leave` after it, within."""
    with ExitStack() as handles:
        for name, part in parts:
            if enter is not None:
                before = part.register_forward_pre_hook(lambda part, _, name=name: enter(name, part))
                handles.enter_context(before)
            if leave is not None:
                handles.enter_context(part.register_forward_hook(partial(leave, name)))
        yield


@contextmanager
def announced(net: nn.Module | None) -> Iterator[None]:
    """Annotate each layer of the network, if it is known, with its path, `layer:encoder.0.3`, within."""
    opened: list[record_function] = []

    def enter(name: str, _: nn.Module) -> None:
        annotation = record_function(f"{LAYER}{name}")
        annotation.__enter__()
        opened.append(annotation)

    with hooked(layers_of(net), enter, lambda *_: opened.pop().__exit__(None, None, None)):
        yield


def layers_of(net: nn.Module | None) -> Iterable[tuple[str, nn.Module]]:
    """Return the layers of a network with their paths; none of an unknown one."""
    return layers(net) if net else []


def layer_work(net: nn.Module, *image: Tensor) -> list[LayerWork]:
    """Return the layers in the order of their first run, then the skip connections, and last what lies between."""
    works: dict[str, LayerWork] = {}
    before: list[int] = []  # FLOPs before each layer that is at work
    total = 0  # FLOPs so far
    read = written = 0  # elements by concatenations outside of layers

    def see(operator: Operator) -> None:
        nonlocal total, read, written
        total += flops(operator) or 0
        if operator.name == "cat" and not before:
            read += sum(part.numel() for part in operator.arguments[0])
            written += operator.result.numel()

    def enter(_: str, __: nn.Module) -> None:
        before.append(total)

    def leave(name: str, layer: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        known = works.get(name) or LayerWork(name, type(layer).__name__, level(name), 0, 0, 0, 0, **channels(layer))
        works[name] = replace(
            known,
            flops=known.flops + total - before.pop(),
            read_elements=known.read_elements + sum(part.numel() for part in inputs if isinstance(part, Tensor)),
            written_elements=known.written_elements + (output.numel() if isinstance(output, Tensor) else 0),
            weight_elements=sum(part.numel() for part in layer.parameters()),
        )

    with torch.inference_mode(), Dispatched(see), hooked(layers(net), enter, leave):
        net(*image)
    rest = total - sum(layer.flops for layer in works.values())
    skips = [LayerWork(SKIP, "concatenation", SKIP, 0, read, written, 0)] if written else []
    return [*works.values(), *skips, LayerWork(BETWEEN, "between layers", "between layers", rest, 0, 0, 0)]


def channels(leaf: nn.Module) -> dict[str, int]:
    """Return `LayerWork`'s channels of a convolution or a linear layer; nothing of any other."""
    if isinstance(leaf, _ConvNd):
        return {"in_channels": leaf.in_channels, "out_channels": leaf.out_channels, "groups": leaf.groups}
    if isinstance(leaf, nn.Linear):
        return {"in_channels": leaf.in_features, "out_channels": leaf.out_features}
    return {}


def level(name: str) -> str:
    """Return the part that a layer is in: "encoder 0" of "encoder.0.3", "bottleneck" of "bottleneck.3"."""
    first, *rest = name.split(".")
    return f"{first} {rest[0]}" if len(rest) > 1 and rest[0].isdigit() else first


def own_times(events: list[TraceEvent], calls: int) -> list[LayerTime]:
    """Return the time of each layer by the annotations around its kernels' launches; on a CPU its operators'."""
    return times(_owners(events), calls)


def replayed_times(events: list[TraceEvent], uncaptured: list[TraceEvent], calls: int) -> list[LayerTime] | None:
    """Return each layer's time by an uncaptured call that launched the kernels in order; None if they differ."""
    of_a_call = [part for part in _owners(uncaptured) if part.event.category == "kernel"]
    kernels, launched = of(events, "kernel"), of_a_call * calls
    if not launched or [kernel.name for kernel in kernels] != [part.event.name for part in launched]:
        return None
    return times([Placed(kernel, part.owner) for kernel, part in zip(kernels, launched, strict=True)], calls)


def _owners(events: list[TraceEvent]) -> list[Placed]:
    """Return every kernel with the layer that launched it; without kernels every outermost CPU operator."""
    layers, work = Annotations(events), of(events, "kernel", "gpu_memcpy", "gpu_memset")
    if not work:
        operators = [operator.event for operator in nested(events) if operator.outermost]
        return [Placed(event, layers.around(event) or _unowned(event)) for event in operators]
    found, started = [], launches(events)
    for event in work:
        launch = started.get(event.correlation)
        found.append(Placed(event, (layers.around(launch) if launch else None) or _unowned(event)))
    return found


def _unowned(event: TraceEvent) -> str:
    """Return what the record calls work that no layer does."""
    return SKIP if joins(event.name) else BETWEEN


def times(found: list[Placed], calls: int) -> list[LayerTime]:
    """Return the time of one call by owner, given the kernels or operators of `calls`."""
    seconds = grouped((part.owner, part.event.duration_us / 1e6) for part in found)
    return [LayerTime(name, sum(each) / calls, len(each) / calls) for name, each in seconds.items()]


@dataclass
class ComputeLayer:
    """A layer with matrix work, in the order in which the eager network runs them."""

    layer: str
    certain: bool  # it can run at no other place
    transposed: bool = False  # a transposed convolution, which cuDNN does as another one's gradient: "dgrad"
    pools: list[str] = field(default_factory=list)  # the pooling layers between it and the next one


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
        call, reached = work[start : start + length], -1
        classes = [classify(event.name) for event in call]
        matrix = sum(kind in MATRIX for kind in classes)
        if matrix != len(order):
            raise OrderError(f"{matrix} matrix kernels a call for {len(order)} layers with matrix work")
        for event, kind in zip(call, classes, strict=True):
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
