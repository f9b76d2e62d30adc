"""Hands layers to the kernels that accept them."""

from collections.abc import Callable
from typing import Any

from pipeline.compiler.graph import Graph, Node
from pipeline.kernels.common.kernel_op import KernelOp, LayerDescription

UPSAMPLING = "aten.upsample_bilinear2d.vec"


def pass_for(op: KernelOp[Any]) -> Callable[[Graph], list[str]]:
    """The pass that gives one kernel the layers that it accepts, named after it: take_conv3x3 and the like."""

    def take(graph: Graph) -> list[str]:
        matched = []
        for node in list(graph.nodes):
            layer = describe(graph, node)
            if layer is not None and op.accepts(layer):
                node.op = op.name
                matched.append(node.name)
        return matched

    take.__name__ = f"take_{op.name}"
    return take


def describe(graph: Graph, node: Node) -> LayerDescription | None:
    """A node as a kernel judges it; None where no kernel could take it."""
    if node.op == UPSAMPLING:
        return _upsampling(graph, node)
    return convolution(graph, node) if node.op in ("conv2d", "conv_transpose2d") else None


def _upsampling(graph: Graph, node: Node) -> LayerDescription:
    before, after = graph.shapes[node.inputs[0]], graph.shapes[str(node.output)]
    return LayerDescription(
        "upsample_bilinear2d",
        before[1],
        after[1],
        pair(before[2:]),
        pair(after[2:]),
        align_corners=bool(node.argument(2)),
    )


def convolution(graph: Graph, node: Node) -> LayerDescription:
    """A node that is a convolution with named parts."""
    before, after, geometry = graph.shapes[node.inputs[0]], graph.shapes[str(node.output)], node.attributes
    return LayerDescription(
        node.op,
        before[1],
        after[1],
        pair(before[2:]),
        pair(after[2:]),
        window=pair(list(graph.tensor(node, "weight").shape[2:])),
        stride=pair(geometry["stride"]),
        padding=pair(geometry["padding"]),
        dilation=pair(geometry["dilation"]),
        output_padding=pair(geometry["output_padding"]),
        groups=geometry["groups"],
        reads_image=is_image(graph, node.inputs[0]),
    )


def pair(values: list[int]) -> tuple[int, int]:
    """Height's and width's value, where one may stand for both."""
    return values[0], values[-1]


def is_image(graph: Graph, value: str) -> bool:
    """Whether a value is the net's input, or that padded."""
    before = graph.producer(value)
    padded = before is not None and before.op == "aten.pad.default" and is_image(graph, before.inputs[0])
    return value == graph.input or padded
