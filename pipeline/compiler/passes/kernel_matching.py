"""Hands layers to the kernels that accept them."""

from collections.abc import Callable, Sequence

import torch
from torch import fx

from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fx_graph import (
    CAST,
    CONV2D,
    MULTIPLICATION,
    PAD,
    SAME_CONV2D,
    TRANSPOSED,
    arguments,
    calls,
    gives_image,
    is_call,
    like,
    name_of,
    only_user,
    shape_of,
    source,
)
from pipeline.compiler.graph.layers import KernelLayer, put_layer
from pipeline.kernels.common.kernel_op import KernelOp, LayerDescription
from pipeline.kernels.conv1x1 import GATED_OP

UPSAMPLING = "aten.upsample_bilinear2d.vec"


def pass_for(op: KernelOp) -> Callable[[ExportedNet], list[str]]:
    """Return the pass that gives one kernel the layers that it accepts, named after it: take_conv3x3 and the like."""

    def take(net: ExportedNet) -> list[str]:
        matched = []
        for node in calls(net.module.graph, CONV2D, SAME_CONV2D, TRANSPOSED, UPSAMPLING):
            layer = describe(net, node)
            if layer is not None and op.accepts is not None and op.accepts(layer):
                matched.append(_give(net, node, op))
        return matched

    take.__name__ = f"take_{op.name}"
    return take


def _give(net: ExportedNet, node: fx.Node, op: KernelOp) -> str:
    """Put a layer of the kernel in a node's place; return the layer's name."""
    weight, bias = (None, None) if is_call(node, UPSAMPLING) else net.parameters(node) or (None, None)
    layer, x = KernelLayer(name_of(node), op, weight, bias), source(node)
    with net.module.graph.inserting_before(node):
        seen = uncast(x) if op.reads_image else x
    if "dilation" in op.folds:
        layer.dilation = pair(arguments(node)["dilation"])[0]
    put_layer(net, node, layer, [seen])
    return layer.name


def take_gated_conv1x1(net: ExportedNet) -> list[str]:
    """Let a 1×1 convolution that alone reads a map times a factor for each image and channel multiply by it."""
    matched = []
    for conv in calls(net.module.graph, CONV2D):
        seen, product, held = describe(net, conv), source(conv), net.parameters(conv)
        parts = factors_and_map(product) if is_call(product, MULTIPLICATION) else None
        if seen is None or held is None or parts is None or only_user(product) is not conv:
            continue
        if seen.is_square(1, 1, 0) and seen.suits_bulk_copies and seen.in_size != (1, 1):
            matched.append(name_of(conv))
            put_layer(net, conv, KernelLayer(name_of(conv), GATED_OP, *held), [parts[1], parts[0]])
    return matched


def factors_and_map(product: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Return what a multiplication multiplies: [N, channels, 1, 1] and [N, channels, H, W]; None for anything else."""
    both = [value for value in product.args if isinstance(value, fx.Node) and gives_image(value)]
    if len(both) < 2:
        return None
    factors, x = sorted(both, key=lambda value: shape_of(value)[2:])
    same = factors.meta["val"].dtype == x.meta["val"].dtype
    return (factors, x) if same and shape_of(factors) == (*shape_of(x)[:2], 1, 1) else None


def describe(net: ExportedNet, node: fx.Node) -> LayerDescription | None:
    """Return a node as a kernel judges it; None if it isn't 2-D, in the net's type and of constant weights."""
    x = source(node)
    if not gives_image(node) or not gives_image(x) or node.meta["val"].dtype != net.dtype:
        return None
    if is_call(node, UPSAMPLING):
        sizes = shape_of(x)[1], shape_of(node)[1], pair(shape_of(x)[2:]), pair(shape_of(node)[2:])
        corners = bool(arguments(node)["align_corners"])
        return LayerDescription("upsample_bilinear2d", *sizes, align_corners=corners) if by_its_sizes(node) else None
    held = net.parameters(node)
    if held is None:
        return None
    kind = "conv_transpose2d" if is_call(node, TRANSPOSED) else "conv2d"
    return described(kind, node, pair(held[0].shape[2:]), reads_image=image_of(x) is not None)


def described(kind: str, node: fx.Node, window: tuple[int, int], *, reads_image: bool) -> LayerDescription:
    """Return a node that is a convolution of images by a weight of a window as a kernel judges it."""
    given = arguments(node)
    before, after = shape_of(given["input"]), shape_of(node)
    # A single tap lies nowhere apart; encoders that are dilated as a whole give it the others' dilation all the same.
    dilation = pair([1 if side == 1 else step for side, step in zip(window, pair(given["dilation"]), strict=True)])
    return LayerDescription(
        kind,
        before[1],
        after[1],
        pair(before[2:]),
        pair(after[2:]),
        window=window,
        stride=pair(given["stride"]),
        padding=pair(padding(given["padding"], window, dilation)),
        dilation=dilation,
        output_padding=pair(given.get("output_padding", [0, 0])),
        groups=given["groups"],
        reads_image=reads_image,
    )


def padding(
    given: str | Sequence[int], window: Sequence[int], dilation: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return a convolution's padding along each axis, also where it is given as a word; -1 for all if sides differ."""
    if not isinstance(given, str):
        return each_axis(given, len(window))
    if given == "valid":
        return (0,) * len(window)
    steps = dilation or (1,) * len(window)
    reach = [step * (side - 1) for side, step in zip(window, steps, strict=True)]
    if any(length % 2 for length in reach):
        return (-1,) * len(window)
    return tuple(length // 2 for length in reach)


def by_its_sizes(node: fx.Node) -> bool:
    """Return whether an up-sampling's steps are its sizes' ratio: by a factor of 2.05 it gives 32 pixels of 16, too."""
    factors, sizes = arguments(node)["scale_factors"], zip(shape_of(node)[2:], shape_of(source(node))[2:], strict=True)
    return factors is None or all(
        factor * before == after for factor, (after, before) in zip(factors, sizes, strict=True)
    )


def pair(values: Sequence[int]) -> tuple[int, int]:
    """Return the values of height and width, where one may stand for both."""
    return int(values[0]), int(values[-1])


def each_axis(values: Sequence[int], axes: int) -> tuple[int, ...]:
    """Return a number for each axis, where one may stand for all."""
    return tuple(values) if len(values) == axes else (values[0],) * axes


def image_of(node: fx.Node) -> fx.Node | None:
    """Return the network's input if the node is that, of floats, cast to no less than fp16 or padded; else None."""
    kind = node.meta["val"].dtype
    if not kind.is_floating_point or torch.finfo(kind).eps > torch.finfo(torch.float16).eps:
        return None
    if is_call(node, CAST, PAD):
        return image_of(source(node))
    return node if node.op == "placeholder" else None


def uncast(node: fx.Node) -> fx.Node:
    """Return the user's image as it came, padded as the node pads it."""
    if not is_call(node, PAD):
        return uncast(source(node)) if is_call(node, CAST) else node
    before = uncast(source(node))
    padded = node.graph.call_function(torch.ops.aten.pad.default, (before, *node.args[1:]), node.kwargs)
    padded.meta = {"val": like(before, shape_of(node))}
    return padded
