"""Hands layers to the kernels that accept them, with the operations around: activations, pools, the head."""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, fx

from pipeline.compiler.graph import fx_graph as nodes
from pipeline.compiler.graph import layers
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.layers import KernelLayer, TokensLayer, producer, put_layer, residual_of
from pipeline.kernels import conv1x1, conv3x3, conv_head
from pipeline.kernels.common.activation import ACTIVATIONS, NONE, Activation, recognised
from pipeline.kernels.common.epilogue import MOST_CLASSES, Head
from pipeline.kernels.common.kernel_op import CHANNELS, KernelOp, LayerDescription
from pipeline.kernels.conv3x3 import conv3x3_narrow

UPSAMPLING, LINEAR = "aten.upsample_bilinear2d.vec", "aten.linear.default"
TOKENS = 3  # axes of [batch, tokens, channels]; with fewer, a linear layer reads one vector for each image


def pass_for(op: KernelOp) -> Callable[[ExportedNet], Iterator[str]]:
    """Return the pass that gives one kernel the layers that it accepts, named after it: take_conv3x3 and the like."""

    def take(net: ExportedNet) -> Iterator[str]:
        for node in nodes.calls(net.module.graph, nodes.CONV2D, nodes.SAME_CONV2D, nodes.TRANSPOSED, UPSAMPLING):
            layer, x = describe(net, node), nodes.source(node)
            if layer is not None and "padding_mode" in op.folds:
                layer, x = before_pad(layer, x)
            if layer is None or op.accepts is None or not op.accepts(layer):
                continue
            weight, bias = (None, None) if nodes.is_call(node, UPSAMPLING) else net.parameters(node) or (None, None)
            made = KernelLayer(nodes.name_of(node), op, weight, bias)
            made.dilation, made.padding_mode = layer.dilation[0] if "dilation" in op.folds else 1, layer.padding_mode
            put_layer(net, node, made, [uncast(x) if op.reads_image else x])
            yield made.name

    take.__name__ = f"take_{op.name}"
    return take


def take_gated_conv1x1(net: ExportedNet) -> Iterator[str]:
    """Let a 1×1 convolution that alone reads a map times a factor for each image and channel multiply by it."""
    for conv in nodes.calls(net.module.graph, nodes.CONV2D):
        seen, product, held = describe(net, conv), nodes.source(conv), net.parameters(conv)
        parts = factors_and_map(product) if nodes.is_call(product, nodes.MULTIPLICATION) else None
        if seen is None or held is None or parts is None or nodes.only_user(product) is not conv:
            continue
        if seen.is_square(1, 1, 0) and seen.suits_bulk_copies and seen.in_size != (1, 1):
            yield nodes.name_of(conv)
            put_layer(net, conv, KernelLayer(nodes.name_of(conv), conv1x1.GATED_OP, *held), [parts[1], parts[0]])


def take_tokens(net: ExportedNet) -> Iterator[str]:
    """Let a kernel multiply what linear layers read, [..., in], as pixels of one row; an activation works on these."""
    graph, images = net.module.graph, dict[fx.Node, fx.Node]()
    for linear in nodes.calls(graph, LINEAR):
        x, held, shape = nodes.source(linear), net.parameters(linear, axis=-1), nodes.shape_of(linear)
        tokens, inner, outer = math.prod(shape[:-1]), nodes.shape_of(x)[-1], shape[-1]
        if held is None or {x.meta["val"].dtype, linear.meta["val"].dtype} != {net.dtype}:
            continue
        if len(shape) < TOKENS or tokens < conv1x1.LEAST_PIXELS or inner % CHANNELS or outer % CHANNELS:
            continue
        if x not in images:
            row = nodes.put_before(linear, aten.reshape.default, x, [1, 1, tokens, inner])
            images[x] = nodes.put_before(linear, aten.permute.default, row, [0, 3, 1, 2])
        linear.meta = {**linear.meta, "val": nodes.like(x, (1, outer, 1, tokens))}
        layer = TokensLayer(nodes.name_of(linear), conv1x1.OP, held[0][..., None, None], held[1])
        image = put_layer(net, linear, layer, [images[x]])
        if nodes.is_call(follows := nodes.only_user(image), *RECOGNISABLE - {PRELU}):
            follows.meta, image = {**follows.meta, "val": image.meta["val"]}, follows
        readers = list(image.users)
        row = nodes.put_before(image.next, aten.permute.default, image, [0, 2, 3, 1])
        answer = nodes.put_before(row.next, aten.reshape.default, row, list(shape))
        for reader in readers:
            reader.replace_input_with(image, answer)
        images[answer] = image
        yield layer.name


def factors_and_map(product: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Return what a multiplication multiplies: [N, channels, 1, 1] and [N, channels, H, W]; None for anything else."""
    both = [value for value in product.args if isinstance(value, fx.Node) and nodes.gives_image(value)]
    if len(both) < 2:
        return None
    factors, x = sorted(both, key=lambda value: nodes.shape_of(value)[2:])
    same = factors.meta["val"].dtype == x.meta["val"].dtype
    return (factors, x) if same and nodes.shape_of(factors) == (*nodes.shape_of(x)[:2], 1, 1) else None


def describe(net: ExportedNet, node: fx.Node) -> LayerDescription | None:
    """Return a node as a kernel judges it; None if it isn't 2-D, in the net's type and of constant weights."""
    x = nodes.source(node)
    if not nodes.gives_image(node) or not nodes.gives_image(x) or node.meta["val"].dtype != net.dtype:
        return None
    if nodes.is_call(node, UPSAMPLING):
        before, after = nodes.shape_of(x), nodes.shape_of(node)
        sizes = before[1], after[1], pair(before[2:]), pair(after[2:])
        corners = bool(nodes.arguments(node)["align_corners"])
        return LayerDescription("upsample_bilinear2d", *sizes, align_corners=corners) if by_its_sizes(node) else None
    held = net.parameters(node)
    if held is None:
        return None
    kind = "conv_transpose2d" if nodes.is_call(node, nodes.TRANSPOSED) else "conv2d"
    return described(kind, node, pair(held[0].shape[2:]), reads_image=image_of(x) is not None)


def described(kind: str, node: fx.Node, window: tuple[int, int], *, reads_image: bool) -> LayerDescription:
    """Return a node that is a convolution of images by a weight of a window as a kernel judges it."""
    given = nodes.arguments(node)
    before, after = nodes.shape_of(given["input"]), nodes.shape_of(node)
    # A single tap lies nowhere apart; encoders that are dilated as a whole give it the others' dilation all the same.
    dilation = pair([1 if side == 1 else step for side, step in zip(window, pair(given["dilation"]), strict=True)])
    return LayerDescription(
        kind, before[1], after[1], pair(before[2:]), pair(after[2:]), window=window, stride=pair(given["stride"]),
        padding=pair(padding(given["padding"], window, dilation)), dilation=dilation,
        output_padding=pair(given.get("output_padding", [0, 0])), groups=given["groups"], reads_image=reads_image,
    )  # fmt: skip


EDGES = {"aten.reflection_pad2d.default": "reflect", "aten.replication_pad2d.default": "replicate"}


def before_pad(layer: LayerDescription, x: fx.Node) -> tuple[LayerDescription, fx.Node]:
    """Return a layer of which a pad of mirrored or repeated edges, half of its window, is a part, and what it reads."""
    if not nodes.is_call(x, nodes.PAD, *EDGES) or layer.padding != (0, 0) or layer.dilation != (1, 1):
        return layer, x
    _, sides, *rest = nodes.arguments(x).values()
    mode, above, before = (rest or [EDGES[str(x.target)]])[0], layer.window[0] // 2, nodes.source(x)
    if mode not in EDGES.values() or list(sides) != [above] * 4 or layer.window[0] != layer.window[1]:
        return layer, x
    layer = replace(layer, in_size=pair(nodes.shape_of(before)[2:]), reads_image=image_of(before) is not None)
    return replace(layer, padding=(above, above), padding_mode=str(mode)), before


def padding(
    given: str | Sequence[int], window: Sequence[int], dilation: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return a convolution's padding along each axis, also where it is given as a word; -1 for all if sides differ."""
    if not isinstance(given, str):
        return each_axis(given, len(window))
    if given == "valid":
        return (0,) * len(window)
    steps = dilation or (1,) * len(window)
    reach = [step * (side - 1) for side, step in zip(window, steps, strict=True)]
    return (-1,) * len(window) if any(length % 2 for length in reach) else tuple(length // 2 for length in reach)


def by_its_sizes(node: fx.Node) -> bool:
    """Return whether an up-sampling's steps are its sizes' ratio: by a factor of 2.05 it gives 32 pixels of 16, too."""
    factors, sizes = nodes.arguments(node)["scale_factors"], nodes.shape_of(nodes.source(node))[2:]
    return factors is None or [factor * size for factor, size in zip(factors, sizes, strict=True)] == list(
        nodes.shape_of(node)[2:]
    )


def pair(values: Sequence[int]) -> tuple[int, int]:
    """Return the values of height and width, where one may stand for both."""
    return int(values[0]), int(values[-1])


def each_axis(values: Sequence[int], axes: int) -> tuple[int, ...]:
    """Return a number for each axis, where one may stand for all."""
    return tuple(values) if len(values) == axes else (values[0],) * axes


def image_of(node: fx.Node) -> fx.Node | None:
    """Return the network's input if the node is that, of floats, cast to no less than fp16 or padded; else None."""
    kind = node.meta["val"].dtype
    if not kind.is_floating_point or torch.finfo(kind).eps > torch.finfo(torch.float16).eps:
        return None
    if nodes.is_call(node, nodes.CAST, nodes.PAD):
        return image_of(nodes.source(node))
    return node if node.op == "placeholder" else None


def uncast(node: fx.Node) -> fx.Node:
    """Return the user's image as it came, padded as the node pads it."""
    if not nodes.is_call(node, nodes.PAD):
        return uncast(nodes.source(node)) if nodes.is_call(node, nodes.CAST) else node
    return nodes.put_before(node, aten.pad.default, uncast(nodes.source(node)), *node.args[1:], **node.kwargs)


PRELU = "aten.prelu.default"
RECOGNISABLE = {kind.aten for kind in ACTIVATIONS.values() if kind.aten}
POOLING = "aten.max_pool2d.default"
POINTWISE = RECOGNISABLE | {nodes.ADDITION, nodes.TO, nodes.MULTIPLICATION}
aten = torch.ops.aten
LEAST_CHANNELS = 64  # of a layer that adds a residual
WIDEST_HEAD = 64  # channels that a head may read: a tile holds them all


def fold_residual(net: ExportedNet) -> Iterator[str]:
    """Let a layer's kernel add a value that is added to its output, where nothing else reads that."""
    order = {node: index for index, node in enumerate(net.module.graph.nodes)}
    normed = {nodes.source(norm.x) for norm in net.norms.values()}
    for add in nodes.calls(net.module.graph, nodes.ADDITION):
        both = [value for value in add.args[:2] if isinstance(value, fx.Node) and nodes.gives_image(value)]
        if len(both) < 2 or both[0] is both[1] or add.kwargs or nodes.shape_of(both[0]) != nodes.shape_of(both[1]):
            continue
        if {value.meta["val"].dtype for value in (add, *both)} != {net.dtype}:
            continue
        found = {value: producer(net.module, value) for value in both}
        sums = [value for value, made in found.items() if add in normed and made and "statistics" in made[1].op.folds]
        ways = sorted((both, both[::-1]), key=lambda values: (values[0] in sums, order.get(values[0], 0)), reverse=True)
        for out, other in ways:
            made = found[out]
            if made is None or made[1].weight is None or made[1].activation != NONE or residual_of(made[0]):
                continue
            alone = nodes.only_user(out) is add and nodes.only_user(made[0]) is out
            if alone and gains_by_adding(made[1].op, made[1].weight.shape):
                add.prepend(made[0])  # the layer moves to where the other value is known
                made[0].kwargs = {**made[0].kwargs, "residual": other}
                add.prepend(out)
                nodes.replace(add, out)
                yield made[1].name
                break


def gains_by_adding(op: KernelOp, weight: nodes.Shape) -> bool:
    """Return whether a kernel adds a residual, and gains by it, with a weight of this shape.

    With 32 channels and a window of 3×3 it doesn't: 0.130 ms, 0.115 without (32 → 32 @ 512, fp16, batch 8, one H200).
    """
    wide = weight[0] >= LEAST_CHANNELS or weight[2:] == (1, 1)
    return "residual" in op.folds and (wide or of_few_channels(op, weight))


def of_few_channels(op: KernelOp, weight: nodes.Shape) -> bool:
    """Return whether the kernel for few channels takes a layer [out, in, 3, 3], whose products have pixels for rows."""
    return op is conv3x3.OP and conv3x3_narrow.pays(weight[1], weight[0])


def fold_activation(net: ExportedNet) -> Iterator[str]:
    """Make an activation that alone reads a layer part of it; one of a form that no kernel has stays ATen's."""
    for node in nodes.calls(net.module.graph, *RECOGNISABLE):
        made = producer(net.module, node.args[0])
        activation = recognised(str(node.target), node.args[1:], node.kwargs)
        if made is None or activation is None or made[1].weight is None or made[1].activation != NONE:
            continue
        out, layer = nodes.source(node), made[1]
        if nodes.only_user(out) is not node or nodes.only_user(made[0]) is not out:
            continue
        slopes = net.constant(node.args[1]) if activation.kind.by_channel else None
        if activation.kind.by_channel and (slopes is None or "slopes" not in layer.op.folds):
            continue
        layer.activation = activation
        layer.slopes = None if slopes is None else slopes.float().expand(nodes.shape_of(out)[1]).contiguous()
        nodes.replace(node, out)
        yield layer.name


def pool_where_it_is_made(net: ExportedNet) -> Iterator[str]:
    """Let the layer before a 2×2 max-pool write it, beside or instead of the full output."""
    for pool in nodes.calls(net.module.graph, POOLING):
        made, given = producer(net.module, pool.args[0]), nodes.arguments(pool)
        even = all(length % 2 == 0 for length in nodes.shape_of(nodes.source(pool))[2:])
        still = not any(given["padding"]) and list(given["dilation"]) in ([1], [1, 1]) and not given["ceil_mode"]
        two = list(given["kernel_size"]) in ([2], [2, 2]) and list(given["stride"]) in ([], [2, 2])
        if made is None or "pool" not in made[1].op.folds or made[1].pool or not (even and still and two):
            continue
        made[1].pool = True
        _answer_instead(*made, layers.POOLED, pool)
        yield made[1].name


FoundHead = tuple[fx.Node, fx.Node, LayerDescription, tuple[Tensor, Tensor]]


def _heads(net: ExportedNet, *, active: bool = False) -> Iterator[FoundHead]:
    """Yield convolutions that are there in fp32, or whose activation is if `active`, with that node.

    With them come how a kernel judges each, and its weight and bias.
    """
    for head in nodes.calls(net.module.graph, nodes.CONV2D):
        seen, held = describe(net, head), net.parameters(head)
        value = next(iter(head.users)) if active and activation_after(head) != NONE else head
        user = nodes.only_user(value)
        logits = user if nodes.is_call(user, nodes.CAST) else value
        if seen is not None and held is not None and logits.meta["val"].dtype == torch.float32:
            yield head, logits, seen, held


def activation_after(value: fx.Node) -> Activation:
    """Return the activation of one slope that alone reads a value; NONE for anything else."""
    node = nodes.only_user(value)
    if not nodes.is_call(node, *RECOGNISABLE - {PRELU}):
        return NONE
    return recognised(str(node.target), node.args[1:], node.kwargs) or NONE


def fold_head(net: ExportedNet) -> Iterator[str]:
    """Join a 1×1 convolution to a few classes to the 3×3 convolution before it, whose output is then never stored."""
    for head, logits, seen, (weight, bias) in _heads(net):
        made = producer(net.module, head.args[0])
        if made is None or "head" not in made[1].op.folds or not seen.is_square(1, 1, 0):
            continue
        few = seen.outer <= MOST_CLASSES and seen.inner <= WIDEST_HEAD
        if not few or nodes.only_user(nodes.source(head)) is not head or made[1].pool:
            continue
        made[1].head = Head(weight.flatten(1).float().contiguous(), bias.float().contiguous())
        net.merged |= {nodes.module_of(head): made[1].name}
        _answer_instead(*made, layers.LOGITS, logits)
        yield made[1].name


def head_after_pointwise(net: ExportedNet) -> Iterator[str]:
    """Write a last 1×1 convolution of a value that Inductor makes pixel by pixel as sums over channels, in ATen.

    Inductor then makes one kernel of both, and the value is never stored. The bias is a part of each product.
    """
    for head, logits, seen, (weight, bias) in _heads(net):
        value, graph = nodes.source(head), net.module.graph
        if not conv_head.accepts(seen) or not seen.is_square(1, 1, 0):
            continue
        if not nodes.is_call(value, *POINTWISE) or nodes.only_user(value) is not head:
            continue
        put, sums = partial(nodes.put_before, logits), list[fx.Node]()
        x = put(aten.to.dtype, value, torch.float32)
        x.meta["head"] = Head(weight.flatten(1).float().contiguous(), bias.float())  # for `own_norms`
        for label, row in enumerate(weight.float().reshape(len(weight), 1, -1, 1, 1)):
            with graph.inserting_before(logits):
                factors = nodes.add_constant(net.module, f"{nodes.module_of(head)}.weight{label}", row.contiguous())
            products = put(aten.mul.Tensor, x, factors)
            if nodes.arguments(head)["bias"] is not None:
                products = put(aten.add.Tensor, products, float(bias[label]) / seen.inner)
            sums.append(put(aten.sum.dim_IntList, products, [1], True))
        together = put(aten.cat.default, sums, 1)
        nodes.replace(logits, together)
        yield nodes.name_of(head)


def take_head(net: ExportedNet) -> Iterator[str]:
    """Let a kernel compute a last convolution to a few classes, its logits fp32, as the user gets them."""
    for head, logits, alone, held in _heads(net, active=True):
        seen, x = before_pad(alone, nodes.source(head))
        if conv_head.accepts(seen):
            layer = KernelLayer(nodes.name_of(head), conv_head.OP, *held)
            layer.stores_out, layer.padding_mode, layer.activation = False, seen.padding_mode, activation_after(head)
            put_layer(net, logits, layer, [x], layers.LOGITS)
            yield layer.name


def _answer_instead(node: fx.Node, layer: KernelLayer, place: int, instead: fx.Node) -> None:
    """Put a part of a layer's answer in the place of a node; an output that nothing reads then isn't stored."""
    with node.graph.inserting_after(node):
        part = node.graph.call_function(operator.getitem, (node, place))
    part.meta = {**instead.meta, "val": nodes.like(instead, nodes.shape_of(instead))}
    nodes.replace(instead, part)
    node.graph.eliminate_dead_code()
    layer.stores_out = any(user.args[1] == layers.OUT for user in node.users)
