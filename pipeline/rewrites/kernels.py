"""Hands convolutions to the project's kernels where their geometry and channels are those that the kernels take."""

from pipeline.kernels.conv3x3_first import MOST_CHANNELS
from pipeline.rewrites.convolution import put
from pipeline.rewrites.graph import Graph, Node

CHANNELS = 16  # TMA moves rows of 16 bytes: a multiple of 16 channels does for fp8 and fp16


def plain(node: Node, size: int, stride: int, padding: int, graph: Graph) -> bool:
    """Whether a convolution has this window, stride and padding, and nothing unusual."""
    weight, geometry = graph.parameter(node, "weight"), node.attributes
    return (
        weight is not None
        and list(weight.shape[2:]) == [size, size]
        and list(geometry["stride"]) == [stride, stride]
        and list(geometry["padding"]) == [padding, padding]
        and list(geometry["dilation"]) == [1, 1]
        and list(geometry["extra"]) == [0, 0]
        and geometry["groups"] == 1
    )


def channels(node: Node, graph: Graph) -> tuple[int, int]:
    """In and out."""
    return graph.shapes[node.inputs[0]][1], graph.shapes[str(node.output)][1]


def take_3x3(graph: Graph) -> list[str]:
    """3×3, stride 1, padding 1, channels in multiples of 16."""
    matched = []
    for node in graph.found("conv2d"):
        inner, outer = channels(node, graph)
        if plain(node, 3, 1, 1, graph) and inner % CHANNELS == 0 and outer % CHANNELS == 0:
            node.op = "conv3x3"
            matched.append(node.name)
    return matched


def take_first(graph: Graph) -> list[str]:
    """A 3×3 convolution of the few channels of an image, which is read as the user gives it: fp32, planar."""
    matched = []
    for node in graph.found("conv2d"):
        inner, outer = channels(node, graph)
        if plain(node, 3, 1, 1, graph) and inner <= MOST_CHANNELS and outer % CHANNELS == 0 and is_image(graph, node):
            node.op = "conv3x3_first"
            matched.append(node.name)
    return matched


def is_image(graph: Graph, node: Node) -> bool:
    """Whether a node reads the net's input, or the input padded."""
    value = node.inputs[0]
    before = graph.producer(value)
    return value == graph.input or (before is not None and before.op == "aten.pad.default" and is_image(graph, before))


def take_transposed(graph: Graph) -> list[str]:
    """2×2, stride 2: a matrix product whose store is the pixel shuffle."""
    matched = []
    for node in graph.found("conv_transpose2d"):
        inner, outer = channels(node, graph)
        if plain(node, 2, 2, 0, graph) and inner % CHANNELS == 0 and outer % CHANNELS == 0:
            node.op = "upconv2x2"
            matched.append(node.name)
    return matched


def take_upsampling(graph: Graph) -> list[str]:
    """Bilinear, twice the size, corners not aligned; and the 1×1 convolutions that go with it."""
    matched = []
    for node in graph.found("aten.upsample_bilinear2d.vec"):
        before, after = graph.shapes[node.inputs[0]], graph.shapes[str(node.output)]
        if [2 * length for length in before[2:]] == after[2:] and not node.argument(2) and before[1] % CHANNELS == 0:
            node.op, node.attributes = "upsample2x", {}
            matched.append(node.name)
    for node in graph.found("conv2d"):
        inner, outer = channels(node, graph)
        if plain(node, 1, 1, 0, graph) and inner % CHANNELS == 0 and outer % CHANNELS == 0:
            node.op = "conv1x1"
            matched.append(node.name)
    return matched


def pool_where_it_is_made(graph: Graph) -> list[str]:
    """A 2×2 max-pool is written by the convolution before it, beside or instead of the full output."""
    matched = []
    for pool in graph.found("aten.max_pool2d.default"):
        conv = graph.producer(pool.inputs[0])
        if (
            conv is None
            or conv.op != "conv3x3"
            or conv.pooled
            or conv.output != pool.inputs[0]
            or not is_2x2(graph, pool)
        ):
            continue
        conv.pooled = str(pool.output)
        graph.nodes.remove(pool)
        if not graph.users(str(conv.output)) and conv.output != graph.output:
            conv.output = None
        matched.append(conv.name)
    return matched


def is_2x2(graph: Graph, pool: Node) -> bool:
    """2×2, stride 2, no padding, on an even size."""
    window, stride, padding = pool.argument(1), pool.argument(2, []), pool.argument(3, [0, 0])
    even = all(length % 2 == 0 for length in graph.shapes[pool.inputs[0]][2:])
    usual = list(padding) == [0, 0] and len(pool.attributes["args"]) < 5
    return list(window) == [2, 2] and list(stride) in ([], [2, 2]) and usual and even


def fold_head(graph: Graph) -> list[str]:
    """A 1×1 convolution to a few classes joins the 3×3 convolution before it, whose output is then never stored."""
    matched = []
    for head in graph.found("conv2d"):
        conv = graph.producer(head.inputs[0])
        weight, bias = graph.parameter(head, "weight"), graph.parameter(head, "bias")
        if conv is None or conv.op != "conv3x3" or weight is None or bias is None or not plain(head, 1, 1, 0, graph):
            continue
        few = weight.shape[0] <= 8 and weight.shape[1] <= 64 and not head.attributes["relu"]
        if not few or graph.only_user(conv.output) is not head or conv.pooled:
            continue
        kernel, shift = graph.parameter(conv, "weight"), graph.parameter(conv, "bias")
        assert kernel is not None
        assert shift is not None
        put(graph, conv, weight=kernel, bias=shift, head_weight=weight.flatten(1), head_bias=bias)
        conv.logits, conv.output = head.output, None
        graph.nodes.remove(head)
        matched.append(conv.name)
    return matched


def join_without_copy(graph: Graph) -> list[str]:
    """A concatenation of channels never happens: each producer writes into its part of one wide buffer."""
    matched = []
    for cat in graph.found("aten.cat.default"):
        parts, wide = cat.inputs, str(cat.output)
        writers = [graph.producer(part) for part in parts]
        ours = all(
            writer is not None and writer.op in OURS and writer.output == part
            for writer, part in zip(writers, parts, strict=True)
        )
        placed = any(part in graph.places for part in parts)
        if cat.argument(1, 0) != 1 or not ours or placed or len(set(parts)) < len(parts):
            continue
        first = 0
        for part in parts:
            graph.places[part] = (wide, first)
            first += graph.shapes[part][1]
        cat.op, cat.attributes = "joined", {}
        matched.append(wide)
    return matched


OURS = {"conv3x3", "conv3x3_first", "conv1x1", "upconv2x2", "upsample2x"}
