"""An up-sampling and the 3×3 convolution that reads it become one layer, with four taps a pixel of the small map.

A 1×1 convolution after an up-sampling goes before it, where a quarter of the pixels are.
"""

from collections.abc import Iterator

import torch
from torch import fx

from pipeline.compiler.graph import fx_graph as nodes
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.layers import UpsampledLayer, Upsampling, put_layer
from pipeline.compiler.passes.kernel_folding import RECOGNISABLE, UPSAMPLING, by_its_sizes, describe
from pipeline.kernels.common.kernel_op import CHANNELS

NEAREST = "aten.upsample_nearest2d.vec"


def compose_upsampling(net: ExportedNet) -> Iterator[str]:
    """Compose an up-sampling by 2, nearest or 2×2 transposed, with the 3×3 convolution after it: one linear map."""
    for conv in nodes.calls(net.module.graph, nodes.CONV2D, nodes.SAME_CONV2D):
        seen = describe(net, conv)
        if seen is None or not seen.is_square(3, 1, 1) or seen.outer % CHANNELS:
            continue
        parts = parts_of(net, conv)
        grown = [part for part in parts if nodes.only_user(part) is not None and upsampling_of(net, part)]
        if grown and (name := _compose(net, conv, parts, grown[-1])):
            yield name


def parts_of(net: ExportedNet, conv: fx.Node) -> list[fx.Node]:
    """Return what a convolution reads: the parts of a concatenation that it alone reads, each once, or one value."""
    value = conv.all_input_nodes[0]
    together = nodes.is_call(value, nodes.CONCATENATION) and nodes.only_user(value) is conv
    together = together and len(set(nodes.joined(value))) == len(nodes.joined(value))
    return nodes.joined(value) if together and value in nodes.channel_concatenations(net.module.graph) else [value]


def upsampling_of(net: ExportedNet, node: fx.Node) -> Upsampling | None:
    """Return what a node does to double its input's height and width; None where it does something else."""
    if not nodes.is_call(node, NEAREST, nodes.TRANSPOSED):
        return None
    before, after = nodes.shape_of(node.all_input_nodes[0]), nodes.shape_of(node)
    if before[1] % CHANNELS or list(after[2:]) != [2 * length for length in before[2:]]:
        return None
    if nodes.is_call(node, NEAREST):
        return Upsampling() if by_its_sizes(node) else None
    seen, given = describe(net, node), nodes.arguments(node)
    weight = net.constant(given["weight"])
    if seen is None or weight is None or not seen.is_square(2, 2, 0):
        return None
    return Upsampling(weight, net.constant(given["bias"]))


def _compose(net: ExportedNet, conv: fx.Node, parts: list[fx.Node], up: fx.Node) -> str:
    """Put one layer in the place of a convolution and an up-sampling before it; its name, or "" where that can't be."""
    rest, small = [part for part in parts if part is not up], nodes.source(up)
    held, upsampling = net.parameters(conv), upsampling_of(net, up)
    if held is None or upsampling is None or sum(nodes.shape_of(part)[1] for part in rest) % CHANNELS:
        return ""
    pieces = dict(zip(parts, held[0].split([nodes.shape_of(part)[1] for part in parts], dim=1), strict=True))
    up_last = torch.cat([pieces[part] for part in (*rest, up)], dim=1)
    name = nodes.name_of(conv)
    layer = UpsampledLayer(name, upsampling, up_last, held[1], nodes.shape_of(small)[1])
    if len(rest) > 1:
        rest = [nodes.put_before(conv, torch.ops.aten.cat.default, rest, 1)]
    put_layer(net, conv, layer, [small, *rest])
    if nodes.is_call(up, nodes.TRANSPOSED):
        net.merged |= {nodes.module_of(up): name}
    return name


def pointwise_before_upsampling(net: ExportedNet) -> Iterator[str]:
    """Move a 1×1 convolution before the up-sampling, with which it commutes, unless it adds channels."""
    for conv in nodes.calls(net.module.graph, nodes.CONV2D, nodes.SAME_CONV2D):
        up = nodes.source(conv)
        if nodes.is_call(up, UPSAMPLING, NEAREST) and nodes.only_user(up) is conv and _gains(net, conv, up):
            yield nodes.module_of(conv)
            small, (_, *how) = nodes.source(up), nodes.arguments(up).values()
            first = nodes.put_before(conv, conv.target, small, *conv.args[1:], **conv.kwargs)  # type: ignore[arg-type]
            last = nodes.put_before(conv, up.target, first, *how)  # type: ignore[arg-type]
            last.meta = {**up.meta, "val": conv.meta["val"]}
            nodes.replace(conv, last)
            net.module.graph.erase_node(up)


def _gains(net: ExportedNet, conv: fx.Node, up: fx.Node) -> bool:
    seen, small = describe(net, conv), nodes.shape_of(nodes.source(up))
    if seen is None or not seen.is_square(1, 1, 0) or nodes.is_call(nodes.only_user(conv), *RECOGNISABLE):
        return False
    grows = nodes.shape_of(up)[2] * nodes.shape_of(up)[3] > small[2] * small[3]
    return grows and seen.outer <= seen.inner
