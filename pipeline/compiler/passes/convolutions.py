"""Turns ATen convolutions into nodes with named parts, and folds batch norm, bias and activation into them."""

from torch import Tensor

from pipeline.compiler.batch_norm import BatchNorm, fold
from pipeline.compiler.graph import Graph, Node
from pipeline.kernels.common.activation import ACTIVATIONS, NONE

BY_ATEN = {kind.aten: name for name, kind in ACTIVATIONS.items() if kind.aten}
KINDS = {"aten.conv2d.default": "conv2d", "aten.conv_transpose2d.input": "conv_transpose2d"}


def name_convolutions(graph: Graph) -> list[str]:
    """Give every convolution with constant weights its parts by name; what has other weights stays ATen's."""
    matched = []
    for node in [node for node in graph.nodes if node.op in KINDS]:
        weight, bias = node.argument(1), node.argument(2)
        if not isinstance(weight, dict) or "tensor" not in weight:
            continue
        transposed = node.op == "aten.conv_transpose2d.input"
        padded, groups, dilation = (5, 6, 7) if transposed else (None, 6, 5)  # where its arguments have them
        geometry = {
            "stride": node.argument(3, [1, 1]),
            "padding": node.argument(4, [0, 0]),
            "output_padding": node.argument(padded, [0, 0]) if padded else [0, 0],
            "groups": node.argument(groups, 1),
            "dilation": node.argument(dilation, [1, 1]),
        }
        key = node.tensors[weight["tensor"]]
        kernel = graph.tensors[key]
        out = kernel.shape[1] * int(geometry["groups"]) if transposed else kernel.shape[0]
        given = graph.tensors[node.tensors[bias["tensor"]]] if isinstance(bias, dict) else kernel.new_zeros(out)
        node.op, node.attributes = KINDS[node.op], geometry
        graph.put(node, weight=kernel, bias=given)
        matched.append(node.name)
    return matched


def fold_batch_norm(graph: Graph) -> list[str]:
    """A batch norm in eval mode behind a convolution scales its weights and moves its bias."""
    matched = []
    for norm in graph.found("aten.batch_norm.default"):
        conv = graph.producer(norm.inputs[0])
        if conv is None or conv.op != "conv2d" or graph.only_user(conv.output) is not norm or norm.argument(5):
            continue
        scale, shift, mean, variance = (constant(graph, norm, index) for index in range(1, 5))
        if mean is None or variance is None:
            continue
        known = BatchNorm(mean, variance, float(norm.argument(7)), scale, shift)
        weight, bias = fold(graph.tensor(conv, "weight"), graph.tensor(conv, "bias"), known)
        graph.put(conv, weight=weight, bias=bias)
        graph.drop(norm, str(conv.output))
        matched.append(conv.name)
    return matched


def constant(graph: Graph, node: Node, index: int) -> Tensor | None:
    """An argument that is one of the graph's tensors, of any shape; None where it is something else."""
    given = node.argument(index)
    return graph.tensors[node.tensors[given["tensor"]]] if isinstance(given, dict) and "tensor" in given else None


def fold_activation(graph: Graph) -> list[str]:
    """An activation that alone reads a convolution becomes part of it; one of another form, by keyword, stays."""
    matched = []
    for node in list(graph.nodes):
        name = BY_ATEN.get(node.op)
        conv = graph.producer(node.inputs[0]) if name else None
        if name is None or conv is None or conv.op not in KINDS.values() or graph.only_user(conv.output) is not node:
            continue
        if conv.activation != NONE or node.attributes["kwargs"]:
            continue
        default = ACTIVATIONS[name].default_slope
        slope = 0.0 if default is None else float(node.argument(1, default))
        conv.attributes |= {"activation": name, "slope": slope}
        graph.drop(node, str(conv.output))
        matched.append(conv.name)
    return matched
