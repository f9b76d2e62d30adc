"""How long a net's layers take at the least, by the types of their values: what a layer kept in fp16 costs."""

import math
from collections.abc import Container

from torch import fx

from pipeline.compiler.exported_net import ExportedNet
from pipeline.compiler.fp8_values import layers_in_fp8
from pipeline.compiler.fx_graph import part_of_answer, shape_of
from pipeline.compiler.kernel_layer import OUT, POOLED, KernelLayer
from pipeline.compiler.layer_nodes import inputs_of, layer_of
from pipeline.compiler.upsampled_layer import UpsampledLayer

# An H200's: FLOP/s of one product at its power cap, bytes/s of a copy (docs/kernels.md). Only what one layer takes
# beside another counts here.
FP16_PACE, FP8_PACE, BYTES_PACE = 684e12, 1279e12, 4.24e12


def least_seconds(net: ExportedNet, stored_fp8: Container[str]) -> float:
    """Seconds of a batch where each layer takes as long as its products or its bytes, whichever take longer.

    Args:
        net: with its layers.
        stored_fp8: the values in fp8, by their nodes' names; the others are in fp16.
    """
    fast, total = set(layers_in_fp8(net, stored_fp8)), 0.0
    for node in net.module.graph.nodes:
        if layer := layer_of(net.module, node):
            pace = FP8_PACE if layer.name in fast else FP16_PACE
            total += max(flops_of_layer(node, layer) / pace, _bytes(node, stored_fp8) / BYTES_PACE)
    return total


def flops_of_layer(node: fx.Node, layer: KernelLayer) -> float:
    """FLOPs of a batch, 2 for a multiply-add, of the layer that a node calls."""
    shapes = [shape_of(value) for value in inputs_of(node)]
    if isinstance(layer, UpsampledLayer):
        return shapes[0][0] * layer.flops_per_image(shapes)
    return layer.op.flops(shapes[0], shapes[0][1] if layer.bias is None else len(layer.bias))


def _bytes(node: fx.Node, stored_fp8: Container[str]) -> int:
    """What the layer that a node calls reads, and stores for other layers."""
    stored = [user for user in node.users if part_of_answer(user) in (OUT, POOLED)]
    values = [*inputs_of(node), *stored]
    return sum(math.prod(shape_of(value)) * (1 if value.name in stored_fp8 else 2) for value in values)
