"""Turns ATen convolutions into nodes with named parts, and folds batch norm, bias and activation into them."""

import torch
from torch import Tensor

from pipeline.rewrites.graph import Graph, Node

KINDS = {"aten.conv2d.default": "conv2d", "aten.conv_transpose2d.input": "conv_transpose2d"}


def name_convolutions(graph: Graph) -> list[str]:
    """Give every convolution with constant weights its parts by name; what has other weights stays ATen's."""
    matched = []
    for node in [node for node in graph.nodes if node.op in KINDS]:
        weight, bias = node.argument(1), node.argument(2)
        if not isinstance(weight, dict) or "tensor" not in weight:
            continue
        transposed = node.op == "aten.conv_transpose2d.input"
        after = 4 if transposed else 3  # a transposed convolution has output_padding in between
        geometry = {
            "stride": node.argument(3, [1, 1]),
            "padding": node.argument(4, [0, 0]),
            "extra": node.argument(5, [0, 0]) if transposed else [0, 0],
            "groups": node.argument(after + 2 if transposed else 6, 1),
            "dilation": node.argument(7 if transposed else 5, [1, 1]),
        }
        key = node.tensors[weight["tensor"]]
        kernel = graph.tensors[key]
        out = kernel.shape[1] * int(geometry["groups"]) if transposed else kernel.shape[0]
        given = graph.tensors[node.tensors[bias["tensor"]]] if isinstance(bias, dict) else kernel.new_zeros(out)
        node.op, node.attributes = KINDS[node.op], {**geometry, "relu": False}
        put(graph, node, weight=kernel, bias=given)
        matched.append(node.name)
    return matched


def put(graph: Graph, node: Node, **parts: Tensor) -> None:
    """Give a node tensors of its own."""
    node.tensors = {role: f"{node.name}.{role}" for role in parts}
    graph.tensors.update({f"{node.name}.{role}": part for role, part in parts.items()})


def fold_batch_norm(graph: Graph) -> list[str]:
    """A batch norm in eval mode behind a convolution scales its weights and moves its bias.

    Source: γ (conv(x) + b − μ) / √(σ² + ε) + β, torch.nn.BatchNorm2d's own formula.
    """
    matched = []
    for norm in graph.found("aten.batch_norm.default"):
        conv = graph.producer(norm.inputs[0])
        if conv is None or conv.op != "conv2d" or graph.only_user(conv.output) is not norm or norm.argument(5):
            continue
        scale, shift, mean, variance = (constant(graph, norm, index) for index in range(1, 5))
        weight, bias = graph.parameter(conv, "weight"), graph.parameter(conv, "bias")
        if mean is None or variance is None or weight is None or bias is None:
            continue
        factor = torch.rsqrt(variance.double() + float(norm.argument(7)))
        factor = factor if scale is None else factor * scale
        moved = (bias.double() - mean) * factor + (0 if shift is None else shift)
        put(graph, conv, weight=(weight.double() * factor.reshape(-1, 1, 1, 1)).float(), bias=moved.float())
        graph.drop(norm, str(conv.output))
        matched.append(conv.name)
    return matched


def constant(graph: Graph, node: Node, index: int) -> Tensor | None:
    """An argument that is one of the graph's tensors."""
    given = node.argument(index)
    return graph.tensors[node.tensors[given["tensor"]]] if isinstance(given, dict) and "tensor" in given else None


def fold_activation(graph: Graph) -> list[str]:
    """A ReLU that alone reads a convolution becomes part of it."""
    matched = []
    for relu in graph.found("aten.relu.default"):
        conv = graph.producer(relu.inputs[0])
        if conv is None or conv.op != "conv2d" or graph.only_user(conv.output) is not relu:
            continue
        conv.attributes["relu"] = True
        graph.drop(relu, str(conv.output))
        matched.append(conv.name)
    return matched
