"""Which kernel takes a convolution of the graph that Inductor compiles, and what its epilogue does of what follows.

The kernels say themselves what they take, as they do to the passes (`KernelOp.accepts`), and pack as they do there:
`KernelOp.pack` is traced, and its operations become part of the graph, as weights are inputs of it. An epilogue takes,
in this order and where nothing else reads them: factors and shifts for each channel, which batch norms in eval mode
consist of once they are taken apart; another value that is added; an activation.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from pipeline.compiler.graph.decomposed_activations import SUMMED, activation_of, readers, uncast
from pipeline.compiler.graph.fx_graph import ADDITION, CLONE, MULTIPLICATION, arguments, is_call, only_user
from pipeline.compiler.ops import KERNELS
from pipeline.compiler.passes.kernel_folding import gains_by_adding
from pipeline.compiler.passes.kernel_matching import described, pair
from pipeline.kernels.common.activation import NONE, Activation
from pipeline.kernels.common.kernel_op import CHANNELS, KernelOp
from pipeline.kernels.common.nhwc import MOST_PIXELS, MOST_PROGRAMS

TAKERS = tuple(op for op in KERNELS if op.accepts is not None and op.pack is not None and not op.writes_logits)
# They ask for no more than steps of 16 bytes. The others see all pixels, or all images, in one line.
STEP_FREELY = ("conv3x3", "conv3x3_dilated", "conv3x3_grouped")
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
    given = arguments(conv)
    x, weight, made = (node.meta["val"] for node in (given["input"], given["weight"], conv))
    if (refused := _why_no_kernel(x, weight, made)) is not None:
        return refused
    kind, window = "conv_transpose2d" if given["transposed"] else "conv2d", pair(weight.shape[2:])
    # What a cast alone parts from an input of the graph is an image.
    layer = described(kind, conv, window, reads_image=uncast(given["input"]).op == "placeholder")
    takers = [op for op in TAKERS if op.accepts is not None and op.accepts(layer)]
    wanted = [op for op in takers if op.name not in leave]
    if takers and not wanted:
        return f"left out, {takers[0].name}"
    if not wanted and layer.groups == 1 and (layer.inner % CHANNELS or layer.outer % CHANNELS):
        return f"channels that are no multiple of {CHANNELS}"
    if not wanted:
        return "a window, stride, padding, groups or size that no kernel takes"
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
    if not all(_is_countable(value) for value in (x, made)):
        return "no pixels, or more than a kernel counts"
    # What reads the answer of a net in NCHW wants that: one kernel in NHWC between would cost two changes of layout.
    in_nhwc = made.is_contiguous(memory_format=torch.channels_last)
    return None if in_nhwc else "an answer that isn't channels_last, as neither input nor weight is"


def _is_countable(value: Tensor) -> bool:
    """Return whether a map [N, C, H, W] isn't empty, and fits every kernel's grid and 32-bit numbers."""
    batch, channels, height, width = value.shape
    few = max(batch, height) <= MOST_PROGRAMS and batch * height * width < MOST_PIXELS
    return value.numel() > 0 and few and channels * height * width < MOST_VALUES


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
    """Return whether all pixels of [N, C, H, W] follow each other at one step, as those of a slice of channels do."""
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
        if is_call(node, CLONE) and reads_weight(op, node.all_input_nodes[0].meta["val"]):
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
    if all(is_call(node, *VIEWS) for node in called):
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
    weight = conv.all_input_nodes[1].meta["val"].shape
    adds = gains_by_adding(op, weight)
    while True:
        grown = _with_factor(ends) or (_with_residual(ends, can_read) if adds else None) or _with_activation(ends, op)
        if grown is None:
            return kept
        ends, half = grown, _in_half(grown.value)
        if half is not None:
            kept = replace(ends, last=half)


def _in_half(value: fx.Node) -> fx.Node | None:
    """Return the node where a value is in fp16: itself, or the cast that alone reads it."""
    if _is_half(value):
        return value
    user = only_user(value)
    return user if user is not None and uncast(user) is not user and _is_half(user) else None


def _operand(ends: Ends, *names: str) -> tuple[fx.Node, fx.Node] | None:
    """Return the one operation that reads a value, where it is one of these, and the other value that it reads."""
    reading = readers(ends.value)
    node = next(iter(reading), None)
    if len(reading) != 1 or not is_call(node, *names) or node is None or node.kwargs or len(node.args) != 2:
        return None
    if ends.activation != NONE or node.meta["val"].dtype not in SUMMED:
        return None
    ours = [isinstance(part, fx.Node) and uncast(part) is ends.value for part in node.args]
    other = node.args[0 if ours[1] else 1]
    backwards = is_call(node, SUBTRACTION) and ours[1]
    return (node, other) if sum(ours) == 1 and isinstance(other, fx.Node) and not backwards else None


def _with_factor(ends: Ends) -> Ends | None:
    """Add one more factor or shift of each channel, if one follows."""
    operand = _operand(ends, ADDITION, SUBTRACTION, MULTIPLICATION)
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
    """Add a value that is added, if one follows."""
    operand = _operand(ends, ADDITION)
    if operand is None or ends.residual is not None:
        return None
    node, other = operand[0], next((part for part in (operand[1], uncast(operand[1])) if _is_half(part)), None)
    if other is None or other.meta["val"].shape != ends.value.meta["val"].shape or not can_read(other.meta["val"]):
        return None
    return replace(ends, value=node, residual=other)


def _is_half(node: fx.Node) -> bool:
    return bool(node.meta["val"].dtype == SUMMED[0])


def _with_activation(ends: Ends, op: KernelOp) -> Ends | None:
    """Add an activation, if one follows."""
    activation = None if ends.activation != NONE else activation_of(ends.value)
    if activation is None:
        return None
    slopes = activation.slopes
    if slopes is not None:
        one = slopes.meta["val"].numel() == 1 and _is_readable(slopes, ends.value)  # for all channels
        if "slopes" not in op.folds or not (one or is_by_channel(slopes, ends.value)):
            return None
    return replace(ends, value=activation.answer, activation=activation.activation, slopes=activation.slopes)
