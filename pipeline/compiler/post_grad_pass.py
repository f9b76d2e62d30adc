"""The kernels in a plain `torch.compile(network)`: a pass over the graph that Inductor compiles.

    from pipeline.compiler import kernels_in_torch_compile
    kernels_in_torch_compile()
    compiled = torch.compile(network.half().to(memory_format=torch.channels_last).eval())

It takes convolutions of images on an NVIDIA GPU, in fp16 and channels_last, of shapes that don't vary, with what their
epilogues do: factors and shifts for each channel, a value that is added, and an activation. Where it takes none of a
graph's convolutions, a warning says why; else the logger of this module's name says at INFO what was put in.

Weights are a graph's inputs, so each call lays them out anew, where that is little beside the layer's work.
AOTInductor's graphs are left alone, as a package must run where the operations aren't registered.
"""

import logging
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx

from pipeline.compiler.custom_ops import MEASURED, NAMES, OUTPUTS, operation
from pipeline.compiler.graph import fx_graph as nodes
from pipeline.compiler.ops import KERNELS
from pipeline.compiler.passes.kernel_folding import described, gains_by_adding, pair
from pipeline.compiler.tuning.autotune import code_digest
from pipeline.kernels.common.activation import ACTIVATIONS, NONE, Activation
from pipeline.kernels.common.capability import barred_on
from pipeline.kernels.common.kernel_op import CHANNELS, KernelOp
from pipeline.kernels.common.nhwc import MOST_PIXELS, MOST_PROGRAMS

CAST = torch.ops.prims.convert_element_type.default
COMMUTATIVE = (nodes.ADDITION, nodes.MULTIPLICATION)
SUMMED = (torch.float16, torch.float32)  # a kernel's sums are fp32: between these no cast changes what it computes
SLOPE = 0.3141592653589793  # in a pattern: any number, the slope
LONGEST = 16  # operations that an activation is taken apart into, and more


class Pattern(NamedTuple):
    """An activation taken apart."""

    name: str  # in the table
    root: fx.Node  # the operation that gives the answer
    x: fx.Node  # what it is the activation of
    slopes: fx.Node | None  # of the channels; None without


class Bound(NamedTuple):
    """The parts of a pattern in a graph: the operations between, and the slope or the slopes, where it has them."""

    inside: frozenset[fx.Node] = frozenset()
    slope: float = 0.0
    slopes: fx.Node | None = None


def uncast(node: fx.Node) -> fx.Node:
    """Return a value without the casts between fp16 and fp32 that it went through last."""
    while nodes.is_call(node, str(CAST)):
        source = node.all_input_nodes[0]
        if not {node.meta["val"].dtype, source.meta["val"].dtype} <= set(SUMMED):
            break
        node = source
    return node


def readers(value: fx.Node) -> set[fx.Node]:
    """Who reads a value, also after casts between fp16 and fp32."""
    readers_seen: set[fx.Node] = set()
    for user in value.users:
        readers_seen |= readers(user) if uncast(user) is not user else {user}
    return readers_seen


def activation_of(value: fx.Node) -> tuple[Activation, fx.Node, fx.Node | None] | None:
    """Return the activation that alone reads a value, the operation that gives it, perhaps in fp32, and its slopes.

    None where something else reads it, or no kernel ends in it; slopes are a vector that broadcasts over images.
    """
    for answer in _after(value):
        for pattern in map(_pattern, [name for name in ACTIVATIONS if name != NONE.name]):
            bound = _fitted(pattern, pattern.root, answer, value, Bound())
            inside = frozenset() if bound is None else bound.inside | {value}
            # Nothing else reads what the activation is computed from and in between.
            if bound is not None and all(readers(node) <= inside | {answer} for node in inside - {answer}):
                return Activation(pattern.name, bound.slope), answer, bound.slopes
    return None


def _after(value: fx.Node) -> Iterator[fx.Node]:
    """Yield the operations that depend on a value, nearest first, at most those that an activation consists of."""
    waiting, known = list(readers(value)), {value}
    while waiting and len(known) <= LONGEST:
        node = waiting.pop(0)
        if node not in known:
            known.add(node)
            waiting += readers(node)
            yield node


@cache
def _pattern(name: str) -> Pattern:
    by_channel = ACTIVATIONS[name].by_channel
    activation = Activation(name) if ACTIVATIONS[name].gains else Activation(name, SLOPE)

    def run(x: Tensor, slopes: Tensor) -> Tensor:
        return activation(x, slopes if by_channel else None)

    with unset_fake_temporarily():
        traced = make_fx(run, decomposition_table=select_decomp_table())(torch.ones(1, 2, 3, 3), torch.ones(2, 1, 1))
    x, slopes = list(traced.graph.nodes)[:2]
    return Pattern(name, traced.graph.output_node().all_input_nodes[0], x, slopes if by_channel else None)


def _fitted(pattern: Pattern, part: object, given: object, value: fx.Node, bound: Bound) -> Bound | None:
    """Return what is bound once a part of a pattern is an argument in a graph; None where it isn't."""
    if part == SLOPE and isinstance(given, int | float):
        return bound._replace(slope=float(given))
    if not isinstance(part, fx.Node) or not isinstance(given, fx.Node):
        return bound if part == given and not isinstance(given, fx.Node) else None
    if part is pattern.slopes:
        return bound._replace(slopes=given) if bound.slopes in (None, given) else None
    node = uncast(given)
    if part is pattern.x:
        return bound if node is value else None
    same = part.op == node.op == "call_function" and node.target == part.target and len(node.args) == len(part.args)
    bound = bound._replace(inside=bound.inside | {node})
    orders = [node.args, node.args[::-1]] if nodes.is_call(node, *COMMUTATIVE) else [node.args]
    for order in orders if same and not node.kwargs else ():
        matched: Bound | None = bound
        for inner, argument in zip(part.args, order, strict=True):
            matched = None if matched is None else _fitted(pattern, inner, argument, value, matched)
        if matched is not None:
            return matched
    return None


TAKERS = tuple(op for op in KERNELS if op.accepts is not None and op.pack is not None and not op.writes_logits)
# They ask for no more than steps of 16 bytes. The others see all pixels, or all images, in one line.
STEP_FREELY = ("conv3x3", "conv3x3_valid", "conv3x3_dilated", "conv3x3_grouped")
MOST_VALUES = 2**31  # of an image: some kernels number them in 32 bits
VIEWS = ("aten.view.default", "aten.reshape.default", "aten.permute.default")
# What a copy of a weight may cost of its layer's time, and the FLOPs for each byte that a Hopper GPU moves: 600 TFLOP/s
# over 3 TB/s. A copy for each call is a small part where a weight has many pixels to multiply, or few values.
SHARE, FLOPS_A_BYTE = 1 / 20, 200


class Choice(NamedTuple):
    """The kernel chosen for a convolution."""

    op: KernelOp
    packing: fx.Graph  # of its weight, by ATen's operations
    dilation: int  # of its window


def choice_of(conv: fx.Node, leave: Collection[str] = ()) -> Choice | str:
    """Return the kernel for a call of aten.convolution, but those to `leave`; where none takes it, why."""
    given = nodes.arguments(conv)
    x, weight, made = (node.meta["val"] for node in (given["input"], given["weight"], conv))
    if (refused := _why_no_kernel(x, weight, made)) is not None:
        return refused
    kind, window = "conv_transpose2d" if given["transposed"] else "conv2d", pair(weight.shape[2:])
    # What a cast alone parts from an input of the graph is an image.
    layer = described(kind, conv, window, reads_image=uncast(given["input"]).op == "placeholder")
    takers = [op for op in TAKERS if op.accepts is not None and op.accepts(layer)]
    wanted = [op for op in takers if op.name not in leave]
    if not wanted:
        odd = layer.groups == 1 and (layer.inner % CHANNELS or layer.outer % CHANNELS)
        wrong = "a window, stride, padding, groups or size that no kernel takes"
        why = f"channels that are no multiple of {CHANNELS}" if odd else wrong
        return f"left out, {takers[0].name}" if takers else why
    read = [op for op in wanted if can_read(op, x)]
    if not read:
        return "an input that isn't channels_last, or whose rows don't begin at multiples of 16 bytes"
    for op in read:
        packing = packing_of(op, weight)
        if is_small(op, packing, x, made):
            return Choice(op, packing, layer.dilation[0] if "dilation" in op.folds else 1)
    return "a weight that would be laid out anew at each call, for too few pixels"


def _why_no_kernel(x: Tensor, weight: Tensor, made: Tensor) -> str | None:
    """Return what no kernel takes, whatever the convolution's window; None where one may."""
    if x.ndim != 4:
        return "no images [batch, channels, height, width]"
    numbers = [number for value in (x, weight, made) for number in (*value.shape, *value.stride())]
    if not all(isinstance(number, int) for number in numbers):
        return "shapes that vary (dynamic)"
    if not x.dtype == weight.dtype == torch.float16:
        return f"in {str(x.dtype).removeprefix('torch.')}, not float16"
    for batch, channels, height, width in (x.shape, made.shape):  # all kernels' grids and numbers of 32 bits hold it
        few = max(batch, height) <= MOST_PROGRAMS and batch * height * width < MOST_PIXELS
        if not few or not batch * channels * height * width > 0 or channels * height * width >= MOST_VALUES:
            return "no pixels, or more than a kernel counts"
    # What reads the answer of a net in NCHW wants that: one kernel in NHWC between would cost two changes of layout.
    in_nhwc = made.is_contiguous(memory_format=torch.channels_last)
    return None if in_nhwc else "an answer that isn't channels_last, as neither input nor weight is"


def can_read(op: KernelOp, value: Tensor) -> bool:
    """Return whether a kernel reads a value [N, C, H, W] of fp16 as it is laid out."""
    if op.reads_image:
        return True  # it is given the image in fp32 and planar
    if op.most_channels != (None, None):
        return value.shape[1] == 1 or value.stride(1) == 1
    return moves_in_bulk(value) and (op.name in STEP_FREELY or _is_one_line(value))


def moves_in_bulk(value: Tensor) -> bool:
    """Return whether TMA reads a value [N, C, H, W]: channels side by side, steps of 16 bytes, nothing repeated."""
    steps = [step for axis, step in enumerate(value.stride()) if axis != 1 and value.shape[axis] > 1]
    aligned = isinstance(value.storage_offset(), int) and value.storage_offset() % CHANNELS == 0
    return aligned and value.stride(1) == 1 and all(step > 0 and step % CHANNELS == 0 for step in steps)


def _is_one_line(value: Tensor) -> bool:
    reach = None
    for axis in (3, 2, 0):
        length, step = value.shape[axis], value.stride(axis)
        if length > 1 and reach not in (None, step):
            return False
        reach = step * length if length > 1 else reach
    return True


def packing_of(op: KernelOp, weight: Tensor) -> fx.Graph:
    """Return what `pack` does to a weight, by ATen's operations; without a copy that the kernel doesn't need."""
    assert op.pack is not None
    with weight.fake_mode:  # type: ignore[attr-defined]
        traced = make_fx(op.pack, decomposition_table=select_decomp_table())(weight)
    graph = traced.graph
    for node in list(graph.nodes):
        if nodes.is_call(node, nodes.CLONE) and reads_weight(op, node.all_input_nodes[0].meta["val"]):
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)
    return graph


def reads_weight(op: KernelOp, packed: Tensor) -> bool:
    """Return whether a kernel reads a packed weight [..., out, in] in any order, as TMA steps through it."""
    by_tma = not op.reads_image and not op.by_channel and op.most_channels == (None, None) and packed.ndim <= 3
    begins, steps = packed.storage_offset(), packed.stride()[:-1]
    aligned = isinstance(begins, int) and begins % CHANNELS == 0 and packed.stride(-1) == 1
    return by_tma and aligned and all(step > 0 and step % CHANNELS == 0 for step in steps)


def is_small(op: KernelOp, packing: fx.Graph, x: Tensor, made: Tensor) -> bool:
    """Return whether packing a weight costs its layer at most a `SHARE` of what it moves or multiplies."""
    called = [node for node in packing.nodes if node.op == "call_function"]
    if all(nodes.is_call(node, *VIEWS) for node in called):
        return True
    packed = packing.output_node().all_input_nodes[0].meta["val"]
    moved = 2 * packed.numel() * packed.itemsize
    pace = max(x.itemsize * (x.numel() + made.numel()), op.flops(tuple(x.shape), made.shape[1]) / FLOPS_A_BYTE)
    return bool(moved <= SHARE * pace)


SUBTRACTION = "aten.sub.Tensor"


@dataclass(frozen=True)
class Ends:
    """A part of a graph that becomes one operation."""

    value: fx.Node  # the last of its values without a cast, perhaps fp32
    last: fx.Node  # the last in fp16, which the operation gives
    factors: tuple[tuple[str, fx.Node], ...] = field(default=())  # of channels, in order, with their operations
    residual: fx.Node | None = None  # added before the activation, as large as the answer
    activation: Activation = NONE  # the last
    slopes: fx.Node | None = None  # of it, as the factors


def ends_of(conv: fx.Node, op: KernelOp, can_read: Callable[[Tensor], bool]) -> Ends:
    """Return all that the epilogue of a convolution's kernel takes over; the longest part that ends in fp16."""
    kept = ends = Ends(conv, conv)
    adds = gains_by_adding(op, conv.all_input_nodes[1].meta["val"].shape)
    while True:
        grown = _with_factor(ends) or (_with_residual(ends, can_read) if adds else None) or _with_activation(ends, op)
        if grown is None:
            return kept
        ends, cast = grown, nodes.only_user(grown.value)
        if _is_half(grown.value):
            kept = replace(ends, last=grown.value)
        elif cast is not None and uncast(cast) is not cast and _is_half(cast):
            kept = replace(ends, last=cast)


def _operand(ends: Ends, *names: str) -> tuple[fx.Node, fx.Node] | None:
    """Return the one operation that reads a value, where it is one of these, and the other value that it reads."""
    reading = readers(ends.value)
    node = next(iter(reading), None)
    if len(reading) != 1 or not nodes.is_call(node, *names) or node.kwargs or len(node.args) != 2:
        return None
    if ends.activation != NONE or node.meta["val"].dtype not in SUMMED:
        return None
    ours = [isinstance(part, fx.Node) and uncast(part) is ends.value for part in node.args]
    other = node.args[0 if ours[1] else 1]
    backwards = nodes.is_call(node, SUBTRACTION) and ours[1]
    return (node, other) if sum(ours) == 1 and isinstance(other, fx.Node) and not backwards else None


def _with_factor(ends: Ends) -> Ends | None:
    operand = _operand(ends, nodes.ADDITION, SUBTRACTION, nodes.MULTIPLICATION)
    if operand is None or ends.residual is not None or not is_by_channel(operand[1], ends.value):
        return None
    node, vector = operand
    return replace(ends, value=node, factors=(*ends.factors, (str(node.target), vector)))


def is_by_channel(vector: fx.Node, value: fx.Node) -> bool:
    """Return whether a value has one number for each channel of another [N, channels, H, W], and broadcasts to it."""
    given, channels = vector.meta["val"], value.meta["val"].shape[1]
    shape = (1,) * (4 - given.ndim) + tuple(given.shape)
    return _is_readable(vector, value) and shape == (1, channels, 1, 1)


def _is_readable(vector: fx.Node, value: fx.Node) -> bool:
    """Return whether a kernel that makes a value reads these numbers; one without axes may lie on the CPU beside it."""
    given = vector.meta["val"]
    return given.dtype in SUMMED and given.device == value.meta["val"].device


def _with_residual(ends: Ends, can_read: Callable[[Tensor], bool]) -> Ends | None:
    operand = _operand(ends, nodes.ADDITION)
    if operand is None or ends.residual is not None:
        return None
    node, other = operand[0], next((part for part in (operand[1], uncast(operand[1])) if _is_half(part)), None)
    if other is None or other.meta["val"].shape != ends.value.meta["val"].shape or not can_read(other.meta["val"]):
        return None
    return replace(ends, value=node, residual=other)


def _is_half(node: fx.Node) -> bool:
    return bool(node.meta["val"].dtype == SUMMED[0])


def _with_activation(ends: Ends, op: KernelOp) -> Ends | None:
    found = None if ends.activation != NONE else activation_of(ends.value)
    if found is None:
        return None
    activation, answer, slopes = found
    if slopes is not None:
        one = slopes.meta["val"].numel() == 1 and _is_readable(slopes, ends.value)  # for all channels
        if "slopes" not in op.folds or not (one or is_by_channel(slopes, ends.value)):
            return None
    return replace(ends, value=answer, activation=activation, slopes=slopes)


CONVOLUTION = "aten.convolution.default"
LOGGER = logging.getLogger(__name__)


def kernels_in_torch_compile(wanted: bool = True, *, leave: Collection[str] = ()) -> None:
    """Have every later compilation use the kernels but those to `leave`, or no longer, by Inductor's configuration.

    From torch 2.12 on that is of the thread that sets it. Raises RuntimeError where another pass has that place.
    """
    config: Any = torch._inductor.config
    there = config.post_grad_custom_pre_pass
    if there is not None and not isinstance(there, Convolutions):
        raise RuntimeError(f"Inductor's post_grad_custom_pre_pass is {there} already")
    config.post_grad_custom_pre_pass = Convolutions(leave=leave) if wanted else None


class Convolutions(CustomGraphPass):
    """Puts a kernel's operation in the place of each convolution that one takes, `anywhere` also on a CPU."""

    def __init__(self, *, anywhere: bool = False, leave: Collection[str] = ()) -> None:
        self.anywhere, self.leave = anywhere, frozenset([leave] if isinstance(leave, str) else leave)
        if unknown := sorted(self.leave - {op.name for op in TAKERS}):
            names = ", ".join(op.name for op in TAKERS)
            raise ValueError(f"{', '.join(unknown)}: no kernel that the pass takes; leave any of {names}")

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrite a functional graph of ATen operations in place."""
        if V.aot_compilation:
            return
        taken: Counter[str] = Counter()
        left: Counter[str] = Counter()
        graph.eliminate_dead_code()
        for conv in nodes.calls(graph, CONVOLUTION):
            barred = None if self.anywhere else barred_on(conv.meta["val"].device, torch.float16)
            choice = barred or choice_of(conv, self.leave)
            if isinstance(choice, Choice):
                replace_convolution(conv, choice, ends_of(conv, choice.op, partial(can_read, choice.op)))
                taken[choice.op.name] += 1
            else:
                left[choice] += 1
        tell(taken, left)

    def uuid(self) -> bytes:
        """Return the name of this pass for Inductor's cache: its sources, and which kernels it puts where."""
        return f"{code_digest()}, anywhere: {self.anywhere}, leave: {sorted(self.leave)}".encode()


def tell(taken: Counter[str], left: Counter[str]) -> None:
    """Say how many of a graph's convolutions went to which kernels, and why others didn't; warn where none did."""
    reasons = "; ".join(f"{count} {why}" for why, count in left.most_common())
    if left and not taken:
        text = f"kernels_in_torch_compile(): all {left.total()} convolutions of a graph stay with Inductor: {reasons}"
        warnings.warn(text, stacklevel=2)
    elif taken:
        kinds = ", ".join(f"{count} {name}" for name, count in taken.most_common())
        rest = f"; with Inductor: {reasons}" if left else ""
        LOGGER.info("%d of %d convolutions: %s%s", taken.total(), (taken + left).total(), kinds, rest)


def replace_convolution(conv: fx.Node, choice: Choice, ends: Ends) -> None:
    """Put a kernel's operation in the place of a convolution and of what its epilogue does."""
    graph, given = conv.graph, nodes.arguments(conv)
    x = uncast(given["input"]) if choice.op.reads_image else given["input"]
    vectors = [vector for _, vector in ends.factors]
    parts = {"x": x, "bias": given["bias"], "slopes": ends.slopes, **{f"factor{n}": v for n, v in enumerate(vectors)}}
    parts = {name: part for name, part in parts.items() if part is not None}
    laid_out = _laid_out(choice.op, [name for name, _ in ends.factors], conv, parts)
    with graph.inserting_before(ends.last):
        known = dict(zip(laid_out.find_nodes(op="placeholder"), parts.values(), strict=True))
        made: Any = graph.graph_copy(laid_out, known)
        packing = {next(iter(choice.packing.nodes)): given["weight"]}
        read: dict[str, Any] = {
            **dict.fromkeys(NAMES), **dict(zip(LAID_OUT, made, strict=True)),
            "weight": graph.graph_copy(choice.packing, packing), "residual": ends.residual, "residual_scale": 1.0,
            "activation": ends.activation.name, "slope": ends.activation.slope, "layer": conv.name, "tile": MEASURED,
            "slices": 1, "dilation": choice.dilation,
        }  # fmt: skip
        buffer = read.pop("result")
        written: dict[str, Any] = {"_result_base_index": 0, "_all_bases": [buffer]}
        written |= {f"_{name}_base_index": read.pop(name) for name in OUTPUTS[1:]}
        both = graph.call_function(auto_functionalized_v2, (operation(choice.op.name),), {**read, **written})
        answer = graph.call_function(operator.getitem, (both, 1))
    both.meta["val"] = (None, buffer.meta["val"])
    answer.meta = {**ends.last.meta, "val": buffer.meta["val"]}
    ends.last.replace_all_uses_with(answer)
    graph.eliminate_dead_code()


LAID_OUT = ("x", "scale", "bias", "slopes", "result")  # that `_laid_out` makes


def _laid_out(op: KernelOp, factors: Sequence[str], conv: fx.Node, parts: Mapping[str, fx.Node]) -> fx.Graph:
    """Return the graph that makes `LAID_OUT` of values by name, in order: vectors become contiguous [out] in fp32.

    The bias, and the operations of `factors` after it, become one scale and one shift; the result is new memory in
    channels_last. A kernel that reads the image takes it in fp32 and planar, which a user's may be already.
    """
    made: Tensor = conv.meta["val"]
    channels, steps = made.shape[1], nodes.steps_of(conv)

    def vector(value: Tensor) -> Tensor:
        flat = value.reshape(-1).float()
        return (flat if len(flat) == channels else flat.expand(channels)).contiguous()

    def run(*values: Tensor) -> tuple[Tensor | None, ...]:
        given = dict(zip(parts, values, strict=True))
        scale, shift = None, vector(given["bias"]) if "bias" in given else None
        for number, name in enumerate(factors):
            factor = vector(given[f"factor{number}"])
            if name == nodes.MULTIPLICATION:
                scale = factor if scale is None else scale * factor
                shift = None if shift is None else shift * factor
            else:
                factor = -factor if name == SUBTRACTION else factor
                shift = factor if shift is None else shift + factor
        if shift is None:
            shift = torch.zeros(channels, device=made.device)
        x = given["x"].float().contiguous() if op.reads_image else given["x"]
        slopes = vector(given["slopes"]) if "slopes" in given else None
        return x, scale, shift, slopes, torch.empty_strided(made.shape, steps, dtype=made.dtype, device=made.device)

    fakes = [part.meta["val"] for part in parts.values()]
    with made.fake_mode:  # type: ignore[attr-defined]
        return make_fx(run, decomposition_table=select_decomp_table())(*fakes).graph
