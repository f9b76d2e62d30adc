"""Lets kernels do the work of the operations around them: activations, pools, and the head."""

import operator
from collections.abc import Iterator

import torch
from torch import Tensor, fx

from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fx_graph import (
    ADDITION,
    CAST,
    CONV2D,
    MULTIPLICATION,
    TO,
    Shape,
    add_constant,
    arguments,
    calls,
    gives_image,
    is_call,
    like,
    module_of,
    name_of,
    only_user,
    replace,
    shape_of,
    source,
)
from pipeline.compiler.graph.layers import LOGITS, OUT, POOLED, KernelLayer, producer, put_layer, residual_of
from pipeline.compiler.passes.kernel_matching import describe
from pipeline.kernels import conv3x3, conv_head
from pipeline.kernels.common.activation import ACTIVATIONS, NONE, recognised
from pipeline.kernels.common.epilogue import MOST_CLASSES, Head
from pipeline.kernels.common.kernel_op import KernelOp, LayerDescription
from pipeline.kernels.conv3x3 import conv3x3_narrow

PRELU = "aten.prelu.default"
RECOGNISABLE = {kind.aten for kind in ACTIVATIONS.values() if kind.aten}
POOLING = "aten.max_pool2d.default"
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
        for out, other in sorted((both, both[::-1]), key=lambda values: -order.get(values[0], 0)):
            made = producer(net.module, out)
            if made and _can_add(*made) and only_user(out) is add and only_user(made[0]) is out:
                add.prepend(made[0])  # the layer moves to where the other value is known
                made[0].kwargs = {**made[0].kwargs, "residual": other}
                add.prepend(out)
                replace(add, out)
                matched.append(made[1].name)
                break
    return matched


def _can_add(node: fx.Node, layer: KernelLayer) -> bool:
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


def fold_activation(net: ExportedNet) -> list[str]:
    """Make an activation that alone reads a layer part of it; one of a form that no kernel has stays ATen's."""
    matched = []
    for node in calls(net.module.graph, *RECOGNISABLE):
        made = producer(net.module, node.args[0])
        activation = recognised(str(node.target), node.args[1:], node.kwargs)
        if made is None or activation is None or made[1].weight is None or made[1].activation != NONE:
            continue
        out, layer = source(node), made[1]
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
        if made is None or "pool" not in made[1].op.folds or made[1].pool or not _is_2x2(pool):
            continue
        made[1].pool = True
        _answer_instead(*made, POOLED, pool)
        matched.append(made[1].name)
    return matched


def _is_2x2(pool: fx.Node) -> bool:
    """Return whether a pool is 2×2 with stride 2 and no padding, on an even size."""
    given = arguments(pool)
    even = all(length % 2 == 0 for length in shape_of(source(pool))[2:])
    steps = list(given["stride"]) in ([], [2, 2])
    still = not any(given["padding"]) and list(given["dilation"]) in ([1], [1, 1]) and not given["ceil_mode"]
    return list(given["kernel_size"]) in ([2], [2, 2]) and steps and still and even


def _heads(net: ExportedNet) -> Iterator[tuple[fx.Node, fx.Node, LayerDescription, tuple[Tensor, Tensor]]]:
    """Yield convolutions whose answer is there in fp32: with that node, as a kernel judges them, weight and bias."""
    for head in calls(net.module.graph, CONV2D):
        seen, user, held = describe(net, head), only_user(head), net.parameters(head)
        logits = user if user is not None and is_call(user, CAST) else head
        if seen is not None and held is not None and logits.meta["val"].dtype == torch.float32:
            yield head, logits, seen, held


def fold_head(net: ExportedNet) -> list[str]:
    """Join a 1×1 convolution to a few classes to the 3×3 convolution before it, whose output is then never stored."""
    matched = []
    for head, logits, seen, (weight, bias) in _heads(net):
        made = producer(net.module, head.args[0])
        if made is None or "head" not in made[1].op.folds or not seen.is_square(1, 1, 0):
            continue
        few = seen.outer <= MOST_CLASSES and seen.inner <= WIDEST_HEAD
        if not few or only_user(source(head)) is not head or made[1].pool:
            continue
        made[1].head = Head(weight.flatten(1).float().contiguous(), bias.float().contiguous())
        net.merged |= {module_of(head): made[1].name}
        _answer_instead(*made, LOGITS, logits)
        matched.append(made[1].name)
    return matched


def head_after_pointwise(net: ExportedNet) -> list[str]:
    """Write a last 1×1 convolution of a value that Inductor makes pixel by pixel as sums over channels, in ATen.

    Inductor then makes one kernel of both, and the value is never stored: a norm, its activation and the logits read
    the layer before them once. The bias is a part of each product, as Inductor would add it in a kernel of its own.
    """
    matched = []
    for head, logits, seen, (weight, bias) in _heads(net):
        value, graph = source(head), net.module.graph
        if not conv_head.accepts(seen) or not seen.is_square(1, 1, 0):
            continue
        if not is_call(value, *POINTWISE) or only_user(value) is not head:
            continue
        with graph.inserting_before(logits):
            x = graph.call_function(aten.to.dtype, (value, torch.float32))
            x.meta = {"val": like(value, shape_of(value), torch.float32)}
            x.meta["head"] = Head(weight.flatten(1).float().contiguous(), bias.float())  # for `own_norms`
            sums = []
            for label, row in enumerate(weight.float().reshape(len(weight), 1, -1, 1, 1)):
                factors = add_constant(net.module, f"{module_of(head)}.weight{label}", row.contiguous())
                products = graph.call_function(aten.mul.Tensor, (x, factors))
                if arguments(head)["bias"] is not None:
                    products = graph.call_function(aten.add.Tensor, (products, float(bias[label]) / seen.inner))
                sums.append(graph.call_function(aten.sum.dim_IntList, (products, [1], True)))
                sums[-1].meta = {"val": like(logits, (shape_of(logits)[0], 1, *seen.out_size))}
            together = graph.call_function(aten.cat.default, (sums, 1))
        together.meta = dict(logits.meta)
        replace(logits, together)
        matched.append(name_of(head))
    return matched


def take_head(net: ExportedNet) -> list[str]:
    """Let a kernel compute a last convolution to a few classes, its logits fp32, as the user gets them."""
    matched = []
    for head, logits, seen, held in _heads(net):
        if conv_head.accepts(seen):
            layer = KernelLayer(name_of(head), conv_head.OP, *held)
            layer.stores_out = False
            put_layer(net, logits, layer, [source(head)], LOGITS)
            matched.append(layer.name)
    return matched


def _answer_instead(node: fx.Node, layer: KernelLayer, place: int, instead: fx.Node) -> None:
    """Put a part of a layer's answer in the place of a node; an output that nothing reads then isn't stored."""
    with node.graph.inserting_after(node):
        part = node.graph.call_function(operator.getitem, (node, place))
    part.meta = {**instead.meta, "val": like(instead, shape_of(instead))}
    replace(instead, part)
    node.graph.eliminate_dead_code()
    layer.stores_out = any(user.args[1] == OUT for user in node.users)
