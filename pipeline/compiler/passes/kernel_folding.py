"""Lets kernels do the work of the operations around them: pools, the head, and concatenations."""

from pipeline.compiler.graph import Graph, Node
from pipeline.compiler.ops import BY_NAME
from pipeline.compiler.passes.kernel_matching import convolution
from pipeline.kernels.common.activation import NONE
from pipeline.kernels.common.epilogue import MOST_CLASSES

WIDEST_HEAD = 64  # channels that a head may read: a tile holds them all


def folds(node: Node, what: str) -> bool:
    """Whether a node runs by a kernel whose epilogue does this."""
    return node.op in BY_NAME and what in BY_NAME[node.op].folds


def pool_where_it_is_made(graph: Graph) -> list[str]:
    """A 2×2 max-pool is written by the convolution before it, beside or instead of the full output."""
    matched = []
    for pool in graph.found("aten.max_pool2d.default"):
        conv = graph.producer(pool.inputs[0])
        if (
            conv is None
            or not folds(conv, "pool")
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
        if conv is None or not folds(conv, "head") or not convolution(graph, head).is_square(1, 1, 0):
            continue
        weight, bias = graph.tensor(head, "weight"), graph.tensor(head, "bias")
        few = weight.shape[0] <= MOST_CLASSES and weight.shape[1] <= WIDEST_HEAD and head.activation == NONE
        if not few or graph.only_user(conv.output) is not head or conv.pooled:
            continue
        kernel, shift = graph.tensor(conv, "weight"), graph.tensor(conv, "bias")
        graph.put(conv, weight=kernel, bias=shift, head_weight=weight.flatten(1), head_bias=bias)
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
            writer is not None and writer.op in BY_NAME and writer.output == part
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
