"""Lets kernels do the work of the operations around them: activations, pools, and the head."""

import operator

import torch
from torch import fx

from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fx_graph import (
    ADDITION,
    MULTIPLICATION,
    Shape,
    add_constant,
    arguments,
    calls,
    gives_image,
    is_call,
    like,
    module_of,
    only_user,
    replace,
    shape_of,
)
from pipeline.compiler.graph.layers import LOGITS, OUT, POOLED, KernelLayer, producer, put_layer, residual_of
from pipeline.compiler.passes.kernel_matching import CONV2D, describe
from pipeline.kernels import conv3x3, conv_head
from pipeline.kernels.common.activation import ACTIVATIONS, NONE, recognised
from pipeline.kernels.common.epilogue import MOST_CLASSES, Head
from pipeline.kernels.common.kernel_op import KernelOp
from pipeline.kernels.conv3x3 import conv3x3_narrow

PRELU = "aten.prelu.default"
RECOGNISABLE = {kind.aten for kind in ACTIVATIONS.values() if kind.aten}
POOLING = "aten.max_pool2d.default"
TO = "aten.to.dtype"
CAST = "aten._to_copy.default"
POINTWISE = RECOGNISABLE | {ADDITION, TO, MULTIPLICATION}
aten = torch.ops.aten
LEAST_CHANNELS = 64  # of a layer that adds a residual
WIDEST_HEAD = 64  # channels that a head may read: a tile holds them all


def fold_residual(net: ExportedNet) -> list[str]:
    """Let a layer's kernel add a value that is added to its output, where nothing else reads that."""
    matched = []
    order = {node: index for index, node in enumerate(net.module.graph.nodes)}
    for add in calls(net.module.graph, ADDITION):
        both = [value for value in add.args[:2] if isinstance(value, fx.Node) and gives_image(value)]
        if len(both) < 2 or both[0] is both[1] or add.kwargs or shape_of(both[0]) != shape_of(both[1]):
            continue
        if {value.meta["val"].dtype for value in (add, *both)} != {net.dtype}:
            continue
        for out in sorted(both, key=lambda value: -order.get(value, 0)):
            made = producer(net.module, out)
            if made and can_add(*made) and only_user(out) is add and only_user(made[0]) is out:
                _add_to(made[0], out, add, next(value for value in both if value is not out))
                matched.append(made[1].name)
                break
    return matched


def can_add(node: fx.Node, layer: KernelLayer) -> bool:
    """Return whether a layer's kernel can add a residual, and gains by it."""
    alone = layer.activation == NONE and residual_of(node) is None
    return alone and layer.weight is not None and gains_by_adding(layer.op, layer.weight.shape)


def gains_by_adding(op: KernelOp, weight: Shape) -> bool:
    """Return whether a kernel adds a residual, and gains by it, with a weight of this shape.

    With 32 channels, a window of 3×3 and a tile of 64 it doesn't: 0.130 ms for 0.115 without (32 → 32 @ 512, fp16,
    batch 8, one H200; docs/kernels.md). The kernel for few channels reads it from memory that nothing else reads.
    """
    wide = weight[0] >= LEAST_CHANNELS or weight[2:] == (1, 1)
    return "residual" in op.folds and (wide or of_few_channels(op, weight))


def of_few_channels(op: KernelOp, weight: Shape) -> bool:
    """Return whether the kernel for few channels takes a layer [out, in, 3, 3], whose products have pixels for rows."""
    return op is conv3x3.OP and conv3x3_narrow.pays(weight[1], weight[0])


def _add_to(node: fx.Node, out: fx.Node, add: fx.Node, other: fx.Node) -> None:
    """Let a layer's node, whose output is `out`, add another value; it moves to where that is known."""
    add.prepend(node)
    node.kwargs = {**node.kwargs, "residual": other}
    add.prepend(out)
    replace(add, out)


def fold_activation(net: ExportedNet) -> list[str]:
    """Make an activation that alone reads a layer part of it; one of a form that no kernel has stays ATen's."""
    matched = []
    for node in calls(net.module.graph, *RECOGNISABLE):
        made = producer(net.module, node.args[0])
        activation = recognised(str(node.target), node.args[1:], node.kwargs)
        if made is None or activation is None or made[1].weight is None or made[1].activation != NONE:
            continue
        out, layer = node.all_input_nodes[0], made[1]
        if only_user(out) is not node or only_user(made[0]) is not out:
            continue
        slopes = net.constant(node.args[1]) if activation.by_channel else None
        if activation.by_channel and (slopes is None or "slopes" not in layer.op.folds):
            continue
        layer.activation = activation
        layer.slopes = None if slopes is None else slopes.float().expand(shape_of(out)[1]).contiguous()
        replace(node, out)
        matched.append(layer.name)
    return matched


def pool_where_it_is_made(net: ExportedNet) -> list[str]:
    """Let the layer before a 2×2 max-pool write it, beside or instead of the full output."""
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
    """Return whether a pool is 2×2 with stride 2 and no padding, on an even size."""
    given = arguments(pool)
    even = all(length % 2 == 0 for length in shape_of(pool.all_input_nodes[0])[2:])
    steps = list(given["stride"]) in ([], [2, 2])
    still = not any(given["padding"]) and list(given["dilation"]) in ([1], [1, 1]) and not given["ceil_mode"]
    return list(given["kernel_size"]) in ([2], [2, 2]) and steps and still and even


def fold_head(net: ExportedNet) -> list[str]:
    """Join a 1×1 convolution to a few classes to the 3×3 convolution before it, whose output is then never stored."""
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
        net.merged |= {module_of(head): layer.name}
        _forget_output(node, layer)
        matched.append(layer.name)
    return matched


def head_after_pointwise(net: ExportedNet) -> list[str]:
    """Write a last 1×1 convolution of a value that Inductor makes pixel by pixel as sums over channels, in ATen.

    Inductor then makes one kernel of both, and the value is never stored: a norm, its activation and the logits read
    the layer before them once. The bias is a part of each product, as Inductor would add it in a kernel of its own.
    """
    matched = []
    for head in calls(net.module.graph, CONV2D):
        seen, logits, value = describe(net, head), _in_fp32(head), head.all_input_nodes[0]
        if seen is None or logits is None or not conv_head.accepts(seen) or not seen.is_square(1, 1, 0):
            continue
        if not is_call(value, *POINTWISE) or only_user(value) is not head:
            continue
        given = arguments(head)
        weight, bias = net.constant(given["weight"]), net.constant(given["bias"])
        assert weight is not None
        rows = weight.float().reshape(len(weight), 1, -1, 1, 1)
        graph = net.module.graph
        with graph.inserting_before(logits):
            x = graph.call_function(aten.to.dtype, (value, torch.float32))
            sums = []
            for label, row in enumerate(rows):
                factors = add_constant(net.module, f"{module_of(head)}.weight{label}", row.contiguous())
                products = graph.call_function(aten.mul.Tensor, (x, factors))
                if bias is not None:
                    products = graph.call_function(aten.add.Tensor, (products, float(bias[label]) / seen.inner))
                sums.append(graph.call_function(aten.sum.dim_IntList, (products, [1], True)))
            together = graph.call_function(aten.cat.default, (sums, 1))
        together.meta = dict(logits.meta)
        x.meta = {"val": like(value, shape_of(value), torch.float32)}
        for part in sums:
            part.meta = {"val": like(logits, (shape_of(logits)[0], 1, *seen.out_size))}
        replace(logits, together)
        matched.append(module_of(head) or head.name)
    return matched


def take_head(net: ExportedNet) -> list[str]:
    """Let a kernel compute a last convolution to a few classes, its logits fp32, as the user gets them."""
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
    """Return the node where logits are in fp32: the head, or the cast that alone reads it; None if they never are."""
    user = only_user(head)
    cast = user if is_call(user, CAST) else head
    return cast if cast is not None and cast.meta["val"].dtype == torch.float32 else None


def _answer(node: fx.Node, place: int, instead: fx.Node) -> fx.Node:
    """Put another part of a layer's answer in the place of a node that computed it."""
    with node.graph.inserting_after(node):
        part = node.graph.call_function(operator.getitem, (node, place))
    part.meta = {**instead.meta, "val": like(instead, shape_of(instead))}
    return part


def _forget_output(node: fx.Node, layer: KernelLayer) -> None:
    """Don't store an output that nothing reads."""
    for out in [user for user in node.users if user.args[1] == OUT]:
        if not out.users:
            node.graph.erase_node(out)
    layer.stores_out = any(user.args[1] == OUT for user in node.users)
