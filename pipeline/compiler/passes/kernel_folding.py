"""Lets kernels do the work of the operations around them: activations, pools, and the head."""

import operator

import torch
from torch import fx

from pipeline.compiler.exported_net import ExportedNet
from pipeline.compiler.fx_graph import arguments, calls, is_call, like, module_of, only_user, replace, shape_of
from pipeline.compiler.kernel_layer import LOGITS, OUT, POOLED, KernelLayer
from pipeline.compiler.layer_nodes import producer, put_layer
from pipeline.compiler.passes.kernel_matching import CONV2D, describe
from pipeline.kernels import conv_head
from pipeline.kernels.common.activation import ACTIVATIONS, NONE, Activation
from pipeline.kernels.common.epilogue import MOST_CLASSES, Head

BY_ATEN = {kind.aten: name for name, kind in ACTIVATIONS.items() if kind.aten}
POOLING = "aten.max_pool2d.default"
CAST = "aten._to_copy.default"
WIDEST_HEAD = 64  # channels that a head may read: a tile holds them all


def fold_activation(net: ExportedNet) -> list[str]:
    """An activation that alone reads a layer becomes part of it; one of a form that no kernel has stays ATen's."""
    matched = []
    for node in calls(net.module.graph, *BY_ATEN):
        made = producer(net.module, node.args[0])
        activation = activation_of(node)
        if made is None or activation is None or made[1].weight is None or made[1].activation != NONE:
            continue
        out = node.all_input_nodes[0]
        if only_user(out) is not node or only_user(made[0]) is not out:
            continue
        made[1].activation = activation
        replace(node, out)
        matched.append(made[1].name)
    return matched


def activation_of(node: fx.Node) -> Activation | None:
    """An ATen activation as the kernels have it; None where its arguments ask for something else."""
    name = BY_ATEN[str(node.target)]
    default, given = ACTIVATIONS[name].default_slope, arguments(node)
    rest = {key: value for key, value in given.items() if key not in ("self", "negative_slope")}
    if rest:
        return None
    return Activation(name, 0.0 if default is None else float(given.get("negative_slope", default)))


def pool_where_it_is_made(net: ExportedNet) -> list[str]:
    """A 2×2 max-pool is written by the layer before it, beside or instead of the full output."""
    matched = []
    for pool in calls(net.module.graph, POOLING):
        made = producer(net.module, pool.args[0])
        if made is None or "pool" not in made[1].op.folds or made[1].pool or not is_2x2(pool):
            continue
        node, layer = made
        layer.pool = True
        replace(pool, _answer(node, POOLED, pool))
        _forget_output(node, layer)
        matched.append(layer.name)
    return matched


def is_2x2(pool: fx.Node) -> bool:
    """2×2, stride 2, no padding, on an even size."""
    given = arguments(pool)
    even = all(length % 2 == 0 for length in shape_of(pool.all_input_nodes[0])[2:])
    steps = list(given["stride"]) in ([], [2, 2])
    still = not any(given["padding"]) and list(given["dilation"]) in ([1], [1, 1]) and not given["ceil_mode"]
    return list(given["kernel_size"]) in ([2], [2, 2]) and steps and still and even


def fold_head(net: ExportedNet) -> list[str]:
    """A 1×1 convolution to a few classes joins the 3×3 convolution before it, whose output is then never stored."""
    matched = []
    for head in calls(net.module.graph, CONV2D):
        made, seen = producer(net.module, head.args[0]), describe(net, head)
        if made is None or seen is None or "head" not in made[1].op.folds or not seen.is_square(1, 1, 0):
            continue
        node, layer = made
        logits = _in_fp32(head)
        few = seen.outer <= MOST_CLASSES and seen.inner <= WIDEST_HEAD
        alone = only_user(head.all_input_nodes[0]) is head and not layer.pool
        if not few or not alone or logits is None:
            continue
        given = arguments(head)
        weight, bias = net.constant(given["weight"]), net.constant(given["bias"])
        assert weight is not None
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        layer.head = Head(weight.flatten(1).float().contiguous(), bias.float().contiguous())
        replace(logits, _answer(node, LOGITS, logits))
        net.module.graph.eliminate_dead_code()
        _forget_output(node, layer)
        matched.append(layer.name)
    return matched


def take_head(net: ExportedNet) -> list[str]:
    """A last convolution to a few classes, its logits fp32, is a kernel that writes them as the user gets them."""
    matched = []
    for head in calls(net.module.graph, CONV2D):
        seen, logits = describe(net, head), _in_fp32(head)
        if seen is None or logits is None or not conv_head.accepts(seen):
            continue
        given = arguments(head)
        weight, bias = net.constant(given["weight"]), net.constant(given["bias"])
        assert weight is not None
        name = module_of(head) or head.name
        layer = KernelLayer(name, conv_head.OP, weight, weight.new_zeros(len(weight)) if bias is None else bias)
        layer.stores_out = False
        put_layer(net, logits, layer, [head.all_input_nodes[0]], LOGITS)
        matched.append(name)
    return matched


def _in_fp32(head: fx.Node) -> fx.Node | None:
    """Where the logits are in fp32: the head itself, or the cast that alone reads it; None where they never are."""
    user = only_user(head)
    cast = user if is_call(user, CAST) else head
    return cast if cast is not None and cast.meta["val"].dtype == torch.float32 else None


def _answer(node: fx.Node, place: int, instead: fx.Node) -> fx.Node:
    """Another part of a layer's answer, in the place of a node that computed it."""
    with node.graph.inserting_after(node):
        part = node.graph.call_function(operator.getitem, (node, place))
    part.meta = {**instead.meta, "val": like(instead, shape_of(instead))}
    return part


def _forget_output(node: fx.Node, layer: KernelLayer) -> None:
    """Don't store an output that nobody reads."""
    for out in [user for user in node.users if user.args[1] == OUT]:
        if not out.users:
            node.graph.erase_node(out)
    layer.stores_out = any(user.args[1] == OUT for user in node.users)
