"""Takes away what changes nothing, and pads of zeros that a convolution adds itself: they hide what is around them.

A window that lies a pixel late becomes one that lies around its pixel, where a kernel then takes the layer.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, fx
from torch.nn import functional

from pipeline.compiler.graph import fx_graph as nodes
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.passes.constant_folding import CONVOLUTIONS, TRANSPOSED, convolution_of
from pipeline.compiler.passes.kernel_folding import describe, pair
from pipeline.kernels import conv_first, depthwise

aten = torch.ops.aten
# With this number they change nothing: Python's `sum` begins with 0, and diffusers divides by a scale of 1.
NEUTRAL = {nodes.ADDITION: 0, nodes.MULTIPLICATION: 1, "aten.div.Tensor": 1}


def drop_identities(net: ExportedNet) -> Iterator[str]:
    """Drop copies in the same layout, empty pads, `NEUTRAL` numbers, and concatenations of one value."""
    for node in nodes.calls(net.module.graph, nodes.CLONE, nodes.PAD, nodes.CONCATENATION, *NEUTRAL):
        if _changes_nothing(node):
            yield nodes.module_of(node)
            nodes.replace(node, node.all_input_nodes[0])


def _changes_nothing(node: fx.Node) -> bool:
    """Return whether a node gives the first value that it is given."""
    if nodes.is_call(node, nodes.CONCATENATION):
        return len(nodes.joined(node)) == 1
    given = nodes.arguments(node)
    if nodes.is_call(node, nodes.CLONE):
        return given["memory_format"] is None
    if nodes.is_call(node, nodes.PAD):
        return not any(given["pad"])
    kept = isinstance(node.args[0], fx.Node) and given["other"] == NEUTRAL[str(node.target)]
    return kept and nodes.source(node).meta["val"].dtype == node.meta["val"].dtype


def drop_empty_parts(net: ExportedNet) -> Iterator[str]:
    """Parts of concatenations that hold no value: what an encoder without a first level gives as that level's skip."""
    for cat in nodes.calls(net.module.graph, nodes.CONCATENATION):
        parts, kind = nodes.joined(cat), cat.meta["val"].dtype
        held = [part for part in parts if 0 not in nodes.shape_of(part)]
        if len(held) in (0, len(parts)) or any(part.meta["val"].dtype != kind for part in held):
            continue
        yield nodes.module_of(cat)
        cat.args = (held, *cat.args[1:])


def fold_padding(net: ExportedNet) -> Iterator[str]:
    """Make a pad of zeros, the same on opposite sides, part of the one convolution that reads it."""
    for pad in nodes.calls(net.module.graph, nodes.PAD):
        conv, sides = nodes.only_user(pad), zeros_around(pad)
        if sides is None or not nodes.is_call(conv, nodes.CONV2D) or nodes.source(conv) is not pad:
            continue
        left, right, above, below = sides
        if left != right or above != below:
            continue
        own, given = pair(nodes.arguments(conv)["padding"]), nodes.arguments(conv)
        padding = [own[0] + above, own[1] + left]
        conv.args = (nodes.source(pad), conv.args[1], given["bias"], given["stride"], padding, *conv.args[5:])
        net.module.graph.erase_node(pad)
        yield nodes.module_of(conv)


def zeros_around(pad: fx.Node) -> tuple[int, int, int, int] | None:
    """Return how many columns left and right and rows above and below a pad of zeros adds; None for another pad."""
    given = nodes.arguments(pad)
    fits = given["mode"] == "constant" and not given["value"] and len(given["pad"]) == 4 and min(given["pad"]) >= 0
    return tuple(given["pad"]) if fits else None


LEAST_WINDOW = 4  # along a side: kernels take smaller ones, or to rearrange the map would take longer than cuDNN


def multiply_patches(net: ExportedNet) -> Iterator[str]:
    """Make convolutions whose windows lie side by side, as those that embed patches, linear layers of patches. Exact.

    A transposed one is a linear layer of pixels, each of which gives a patch. Pixels beyond whole windows are left out.
    """
    for conv in nodes.calls(net.module.graph, *CONVOLUTIONS):
        found = convolution_of(net, conv)
        if found is None or found.groups > 1 or any(found.padding) or max(found.dilation) > 1:
            continue
        if found.stride == found.weight.shape[2:] and min(found.stride) >= LEAST_WINDOW:
            yield nodes.module_of(conv)
            nodes.replace(conv, _multiplied(net, conv, found.weight, found.bias))


def _multiplied(net: ExportedNet, conv: fx.Node, weight: Tensor, bias: Tensor) -> fx.Node:
    """Return the answer [N, out, ...] of a convolution's weight [out, in, k, k] (transposed: [in, out, k, k])."""
    put, transposed, window = partial(nodes.put_before, conv), nodes.is_call(conv, *TRANSPOSED), weight.shape[2:]
    x, axes, (batch, outer, *size) = nodes.source(conv), len(window), nodes.shape_of(conv)
    small = nodes.shape_of(x)[2:] if transposed else size
    if transposed:
        matrix, bias = weight.movedim((0, 1), (-1, -2)).flatten(0, -2), bias.tile(window.numel())
    else:
        matrix = weight.movedim(1, -1).flatten(1)
        for axis, side in enumerate(window, start=2):
            x = put(aten.unfold.default, x, axis, side, side)
    x = put(aten.movedim.int, x, 1, -1)  # channels lie side by side in a patch, as in memory
    x = put(aten.reshape.default, x, [batch, *small, matrix.shape[1]])
    held = net.add_weight(conv, "weight", matrix.contiguous()), net.add_weight(conv, "bias", bias)
    x = put(aten.linear.default, x, *held)
    if transposed:
        x = put(aten.reshape.default, x, [batch, *small, *window, outer])
        between = [axis for row in range(1, axes + 1) for axis in (row, row + axes)]
        x = put(aten.permute.default, x, [0, *between, 2 * axes + 1])
        x = put(aten.reshape.default, x, [batch, *size, outer])
    return put(aten.movedim.int, x, -1, 1)


OFFERED = (depthwise.STRIDED_OP, conv_first.STRIDED_OP)
FEW = 4  # channels of an image whose first convolution a kernel takes in 7×7


def read_before_unshuffling(net: ExportedNet) -> Iterator[str]:
    """Let a 3×3 convolution of 2×2 pixels as channels (space to depth) read the image, with a stride of 2. Exact."""
    for unshuffle in nodes.calls(net.module.graph, nodes.PIXEL_UNSHUFFLE):
        conv, x = nodes.only_user(unshuffle), nodes.source(unshuffle)
        if not nodes.is_call(conv, nodes.CONV2D):
            continue
        given, channels = nodes.arguments(conv), nodes.shape_of(x)[1]
        weight = net.constant(given["weight"])
        plain = {pair(given[name]) for name in ("stride", "padding", "dilation")} == {(1, 1)} and channels <= FEW
        if weight is not None and plain and weight.shape[1:] == (4 * channels, 3, 3):
            wide = functional.pixel_shuffle(weight, 2).contiguous(memory_format=torch.channels_last)
            conv.args = (x, net.add_weight(conv, "weight", wide), given["bias"], [2, 2], [2, 2])
            yield nodes.module_of(conv)


def centre_windows(net: ExportedNet) -> Iterator[str]:
    """Centre windows of stride 2 that reach a row further below than above, and a column further right, by zeros.

    Those are TensorFlow's "same" (EfficientNet), windows of 4×4 with a padding of 1 (pix2pix), and of 6×6 with 2 (a 3×3
    of unshuffled pixels). Exact, on even sizes.
    """
    for pad in nodes.calls(net.module.graph, nodes.PAD):
        conv, margin = nodes.only_user(pad), _late(pad)
        if margin is None or not nodes.is_call(conv, nodes.CONV2D):
            continue
        if _is_square(net, conv, 2 * margin + 3, 0) and _widened(net, conv, nodes.source(pad), 2, margin + 2):
            net.module.graph.erase_node(pad)
            yield nodes.module_of(conv)
    for conv in nodes.calls(net.module.graph, nodes.CONV2D):
        even = all(length % 2 == 0 for length in nodes.shape_of(nodes.source(conv))[2:])
        for side, padding in ((4, 1), (6, 2)) if even else ():
            if _is_square(net, conv, side, padding) and _widened(net, conv, nodes.source(conv), 1, padding + 1):
                yield nodes.module_of(conv)


def _is_square(net: ExportedNet, conv: fx.Node, side: int, padding: int) -> bool:
    found, geometry = convolution_of(net, conv), ((side, side), (2, 2), (padding, padding), (1, 1))
    return found is not None and (found.weight.shape[2:], found.stride, found.padding, found.dilation) == geometry


def _widened(net: ExportedNet, conv: fx.Node, x: fx.Node, rows: int, padding: int) -> bool:
    """Give a window more rows above and columns left, of zeros; undone where no kernel takes the layer then."""
    given, before, known = nodes.arguments(conv), conv.args, net.exact
    weight = net.constant(given["weight"])
    assert weight is not None
    wider = functional.pad(weight, (rows, 0, rows, 0)).contiguous(memory_format=torch.channels_last)
    kernel = net.add_weight(conv, "weight", wider)
    conv.args = (x, kernel, given["bias"], [2, 2], [padding] * 2, [1, 1], given["groups"])
    seen = describe(net, conv)
    if seen is not None and any(op.accepts is not None and op.accepts(seen) for op in OFFERED):
        return True
    conv.args, net.exact = before, known
    net.module.graph.erase_node(kernel)
    return False


def _late(pad: fx.Node) -> int | None:
    """Return the rows that a pad of zeros adds above, if it adds one more below and columns alike, to an even size."""
    left, right, above, below = zeros_around(pad) or (0, 0, 0, 0)
    even = all(length % 2 == 0 for length in nodes.shape_of(nodes.source(pad))[2:])
    return above if even and left == above and right == below == above + 1 else None
