"""Takes away what changes nothing, and pads of zeros that a convolution adds itself: they hide what is around them."""

from torch import fx

from pipeline.compiler.exported_net import ExportedNet
from pipeline.compiler.fx_graph import (
    ADDITION,
    CLONE,
    CONCATENATION,
    arguments,
    calls,
    is_call,
    joined,
    module_of,
    only_user,
    replace,
    shape_of,
    source,
)
from pipeline.compiler.passes.kernel_matching import CONV2D, PAD, pair


def drop_identities(net: ExportedNet) -> list[str]:
    """What changes nothing: copies in the same layout (dropouts in eval mode), pads by nothing, sums with the number 0.

    Among it are concatenations of one value, with which each of DenseNet's blocks begins.
    """
    matched = []
    for node in calls(net.module.graph, CLONE, PAD, ADDITION, CONCATENATION):
        if _changes_nothing(node):
            matched.append(module_of(node))
            replace(node, node.all_input_nodes[0])
    return matched


def _changes_nothing(node: fx.Node) -> bool:
    """Whether a node gives the first value that it is given; a sum with 0 is where Python's `sum` begins."""
    if is_call(node, CONCATENATION):
        return len(joined(node)) == 1
    given = arguments(node)
    if is_call(node, CLONE):
        return given["memory_format"] is None
    if is_call(node, PAD):
        return not any(given["pad"])
    kept = isinstance(node.args[0], fx.Node) and given["other"] in (0, 0.0) and not isinstance(given["other"], fx.Node)
    return kept and source(node).meta["val"].dtype == node.meta["val"].dtype


def drop_empty_parts(net: ExportedNet) -> list[str]:
    """Parts of concatenations that hold no value: what an encoder without a first level gives as that level's skip."""
    matched = []
    for cat in calls(net.module.graph, CONCATENATION):
        parts, kind = joined(cat), cat.meta["val"].dtype
        held = [part for part in parts if 0 not in shape_of(part)]
        if len(held) in (0, len(parts)) or any(part.meta["val"].dtype != kind for part in held):
            continue
        matched.append(module_of(cat))
        if len(held) == 1:
            replace(cat, held[0])
        else:
            cat.args = (held, *cat.args[1:])
    return matched


def fold_padding(net: ExportedNet) -> list[str]:
    """A pad of zeros, the same on opposite sides, whose one reader is a convolution becomes that one's padding."""
    matched = []
    for pad in calls(net.module.graph, PAD):
        conv, sides = only_user(pad), zeros_around(pad)
        if conv is None or sides is None or not is_call(conv, CONV2D) or source(conv) is not pad:
            continue
        own = pair(arguments(conv)["padding"])
        stride, rest = conv.args[3] if len(conv.args) > 3 else [1, 1], conv.args[5:]
        bias = conv.args[2] if len(conv.args) > 2 else None
        padding = [own[0] + sides[0], own[1] + sides[1]]
        conv.args = (source(pad), conv.args[1], bias, stride, padding, *rest)
        net.module.graph.erase_node(pad)
        matched.append(module_of(conv))
    return matched


def zeros_around(pad: fx.Node) -> tuple[int, int] | None:
    """How many rows above and below and columns left and right a pad adds; None where sides or values differ."""
    given = arguments(pad)
    if given["mode"] != "constant" or given["value"] or len(given["pad"]) != 4:
        return None
    left, right, above, below = given["pad"]
    return (above, left) if left == right and above == below and min(left, above) >= 0 else None
