"""Which kernel takes a convolution of the graph that Inductor compiles, and how it reads the convolution's weight.

The kernels say themselves what they take, as they do to a stage's passes (`KernelOp.accepts`), and pack as they do
there: `KernelOp.pack` is traced, and its operations become part of the graph, as weights are inputs of it.
"""

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from pipeline.compiler.decomposed_activations import uncast
from pipeline.compiler.fx_graph import CLONE, arguments, is_call
from pipeline.compiler.ops import KERNELS
from pipeline.compiler.passes.kernel_matching import described, pair
from pipeline.kernels.common.capability import barred_on
from pipeline.kernels.common.kernel_op import CHANNELS, KernelOp, LayerDescription
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
    """How a convolution is to be computed.

    Attributes:
        op: the kernel.
        packing: of its weight, by ATen's operations.
        dilation: of its window.
    """

    op: KernelOp
    packing: fx.Graph
    dilation: int


def why_not_on(device: torch.device) -> str | None:
    """Why the kernels don't run on a device; None where they do."""
    return barred_on(device, torch.float16)


def choice_of(conv: fx.Node, leave: Collection[str] = ()) -> Choice | str:
    """The kernel for a convolution of the values as they are laid out; where none takes it, why.

    Args:
        conv: a call of aten.convolution, with what it reads and gives in `meta["val"]`.
        leave: kernels that are not to be taken.
    """
    given = arguments(conv)
    x, weight, made = (node.meta["val"] for node in (given["input"], given["weight"], conv))
    refused = _why_no_kernel(x, weight, made)
    if refused is not None:
        return refused
    layer = _described(conv)
    takers = [op for op in TAKERS if op.accepts is not None and op.accepts(layer)]
    wanted = [op for op in takers if op.name not in leave]
    if not wanted:
        return f"left out, {takers[0].name}" if takers else _why_none_accepts(layer)
    read = [op for op in wanted if can_read(op, x)]
    if not read:
        return "an input that isn't channels_last, or whose rows don't begin at multiples of 16 bytes"
    for op in read:
        packing = packing_of(op, weight)
        if is_small(op, packing, x, made):
            return Choice(op, packing, layer.dilation[0] if "dilation" in op.folds else 1)
    return "a weight that would be laid out anew at each call, for too few pixels"


def _why_no_kernel(x: Tensor, weight: Tensor, made: Tensor) -> str | None:
    """What no kernel takes, whatever the convolution's window; None where one may."""
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
    """Whether a map [N, C, H, W] isn't empty, and no kernel's grid or number of a pixel or value is too small."""
    batch, channels, height, width = value.shape
    few = max(batch, height) <= MOST_PROGRAMS and batch * height * width < MOST_PIXELS
    return value.numel() > 0 and few and channels * height * width < MOST_VALUES


def _described(conv: fx.Node) -> LayerDescription:
    """A convolution as a kernel judges it; what a cast alone parts from an input of the graph is an image."""
    given = arguments(conv)
    kind = "conv_transpose2d" if given["transposed"] else "conv2d"
    window = pair(given["weight"].meta["val"].shape[2:])
    return described(kind, conv, window, reads_image=uncast(given["input"]).op == "placeholder")


def _why_none_accepts(layer: LayerDescription) -> str:
    """Whether it is the channels that no kernel takes, or the window."""
    if layer.groups == 1 and (layer.inner % CHANNELS or layer.outer % CHANNELS):
        return f"channels that are no multiple of {CHANNELS}"
    return "a window, stride, padding, groups or size that no kernel takes"


def can_read(op: KernelOp, value: Tensor) -> bool:
    """Whether a kernel reads a value [N, C, H, W] of fp16 as it is laid out."""
    if op.reads_image:
        return True  # it is given the image in fp32 and planar
    if op.most_channels != (None, None):
        return value.shape[1] == 1 or value.stride(1) == 1
    return moves_in_bulk(value) and (op.name in STEP_FREELY or _is_one_line(value))


def moves_in_bulk(value: Tensor) -> bool:
    """Whether TMA reads a value [N, C, H, W] as it is: channels side by side, steps of 16 bytes, nothing repeated."""
    steps = [step for axis, step in enumerate(value.stride()) if axis != 1 and value.shape[axis] > 1]
    aligned = isinstance(value.storage_offset(), int) and value.storage_offset() % CHANNELS == 0
    return aligned and value.stride(1) == 1 and all(step > 0 and step % CHANNELS == 0 for step in steps)


def _is_one_line(value: Tensor) -> bool:
    """Whether all pixels of [N, C, H, W] follow each other at one step, as those of a slice of channels do."""
    reach = None
    for axis in (3, 2, 0):
        length, step = value.shape[axis], value.stride(axis)
        if length > 1 and reach not in (None, step):
            return False
        reach = step * length if length > 1 else reach
    return True


def packing_of(op: KernelOp, weight: Tensor) -> fx.Graph:
    """What a kernel's `pack` does to a weight of torch's own shape, by ATen's operations that Inductor compiles.

    Without the copy at the end where the kernel reads [..., out, in] in any order.
    """
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
    """Whether a kernel reads a packed weight [..., out, in] in another order than its own, as TMA steps through it."""
    by_tma = not op.reads_image and not op.by_channel and op.most_channels == (None, None) and packed.ndim <= 3
    begins, steps = packed.storage_offset(), packed.stride()[:-1]
    aligned = isinstance(begins, int) and begins % CHANNELS == 0 and packed.stride(-1) == 1
    return by_tma and aligned and all(step > 0 and step % CHANNELS == 0 for step in steps)


def is_small(op: KernelOp, packing: fx.Graph, x: Tensor, made: Tensor) -> bool:
    """Whether packing a weight costs its layer little: nothing, or at most a `SHARE` of what it moves or multiplies.

    Args:
        op: the layer's kernel.
        packing: of the weight.
        x: the layer's input [N, in, H, W].
        made: its output [N, out, H', W'].
    """
    called = [node for node in packing.nodes if node.op == "call_function"]
    if all(is_call(node, *VIEWS) for node in called):
        return True
    packed = packing.output_node().all_input_nodes[0].meta["val"]
    moved = 2 * packed.numel() * packed.itemsize
    pace = max(x.itemsize * (x.numel() + made.numel()), op.flops(tuple(x.shape), made.shape[1]) / FLOPS_A_BYTE)
    return bool(moved <= SHARE * pace)
