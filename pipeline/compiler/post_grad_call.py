"""Writes a kernel's operation, and what it reads, into the graph that Inductor compiles."""

import operator
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.node import Argument

from pipeline.compiler.custom_ops import MEASURED, NAMES, OUTPUTS, operation
from pipeline.compiler.decomposed_activations import CAST, uncast
from pipeline.compiler.fx_graph import MULTIPLICATION, arguments, erase_unread
from pipeline.compiler.post_grad_choice import Choice
from pipeline.compiler.post_grad_ends import SUBTRACTION, Ends
from pipeline.kernels.common.kernel_op import KernelOp

aten = torch.ops.aten


def replace_convolution(conv: fx.Node, choice: Choice, ends: Ends) -> None:
    """Put a kernel's operation in the place of a convolution and of what its epilogue does."""
    graph, given = conv.graph, arguments(conv)
    with graph.inserting_before(ends.last):
        scale, bias = _scale_and_bias(graph, given["bias"], ends.factors, conv.meta["val"])
        parts: dict[str, Argument] = {
            "x": _read(graph, given["input"], choice.op),
            "weight": _packed(graph, given["weight"], choice.packing),
            "scale": scale,
            "bias": bias,
            "slopes": None if ends.slopes is None else _vector(graph, ends.slopes, bias.meta["val"].numel()),
            "residual": ends.residual,
            "residual_scale": 1.0,
            "activation": ends.activation.name,
            "slope": ends.activation.slope,
            "layer": conv.name,
            "tile": MEASURED,
            "slices": 1,
            "dilation": choice.dilation,
        }
        answer = _operation(graph, choice.op, parts, conv.meta["val"])
    answer.meta = {**ends.last.meta, "val": answer.meta["val"]}
    ends.last.replace_all_uses_with(answer)
    erase_unread(ends.last)


def _operation(graph: fx.Graph, op: KernelOp, parts: Mapping[str, Argument], value: Tensor) -> fx.Node:
    """The operation's answer, a new map in channels_last, of the shape and type of a value [N, out, H, W]."""
    batch, channels, height, width = value.shape
    steps = [channels * height * width, 1, channels * width, channels]
    named: dict[str, Argument] = {"dtype": value.dtype, "device": value.device}
    buffer = call(graph, aten.empty_strided.default, ([batch, channels, height, width], steps), named)
    given = {name: parts.get(name) for name in NAMES if name not in OUTPUTS}
    given |= {"_result_base_index": 0, "_all_bases": [buffer]}
    given |= {f"_{name}_base_index": None for name in OUTPUTS[1:]}
    made = graph.call_function(auto_functionalized_v2, (operation(op.name),), given)
    made.meta["val"] = (None, buffer.meta["val"])
    answer = graph.call_function(operator.getitem, (made, 1))
    answer.meta["val"] = buffer.meta["val"]
    return answer


def _read(graph: fx.Graph, x: fx.Node, op: KernelOp) -> fx.Node:
    """The input as a kernel reads it: one of images takes fp32 and planar, which a user's may be already."""
    if not op.reads_image:
        return x
    image = uncast(x)
    if image.meta["val"].dtype != torch.float32:
        image = call(graph, CAST, (image, torch.float32))
    return _contiguous(graph, image)


def _packed(graph: fx.Graph, weight: fx.Node, packing: fx.Graph) -> fx.Node:
    """A weight as its kernel reads it, by the operations of its packing."""
    inside: dict[fx.Node, fx.Node] = {}
    for node in packing.nodes:
        if node.op == "placeholder":
            inside[node] = weight
        elif node.op != "output":
            inside[node] = graph.node_copy(node, inside.__getitem__)
    return inside[packing.output_node().all_input_nodes[0]]


def _scale_and_bias(
    graph: fx.Graph, bias: fx.Node | None, factors: Sequence[tuple[str, fx.Node]], value: Tensor
) -> tuple[fx.Node | None, fx.Node]:
    """Scale, where there is one, and bias [out] in fp32 of a convolution's bias and the factors and shifts after it."""
    channels = value.shape[1]
    scale, shift = None, None if bias is None else _vector(graph, bias, channels)
    for name, given in factors:
        vector = _vector(graph, given, channels)
        if name == MULTIPLICATION:
            scale = vector if scale is None else call(graph, aten.mul.Tensor, (scale, vector))
            shift = None if shift is None else call(graph, aten.mul.Tensor, (shift, vector))
        elif shift is None:
            shift = call(graph, aten.neg.default, (vector,)) if name == SUBTRACTION else vector
        else:
            target = aten.sub.Tensor if name == SUBTRACTION else aten.add.Tensor
            shift = call(graph, target, (shift, vector))
    if shift is None:
        named: dict[str, Argument] = {"dtype": torch.float32, "device": value.device}
        shift = call(graph, aten.full.default, ([channels], 0.0), named)
    return scale, shift


def _vector(graph: fx.Graph, given: fx.Node, channels: int) -> fx.Node:
    """What has one number for each channel, or one for all, as [channels] in fp32."""
    flat = given if given.meta["val"].ndim == 1 else call(graph, aten.reshape.default, (given, [-1]))
    if flat.meta["val"].dtype != torch.float32:
        flat = call(graph, CAST, (flat, torch.float32))
    if len(flat.meta["val"]) != channels:
        flat = call(graph, aten.expand.default, (flat, [channels]))
    return _contiguous(graph, flat)


def _contiguous(graph: fx.Graph, given: fx.Node) -> fx.Node:
    """A value, or a copy of it that is contiguous."""
    if given.meta["val"].is_contiguous():
        return given
    return call(graph, aten.clone.default, (given,), {"memory_format": torch.contiguous_format})


def call(
    graph: fx.Graph, target: OpOverload, args: tuple[Argument, ...], named: dict[str, Argument] | None = None
) -> fx.Node:
    """A call with what it gives as a fake tensor, of any shape, in `meta["val"]`."""
    node = graph.call_function(target, args, named or {})
    fakes = [part.meta["val"] for part in node.all_input_nodes]
    modes = [part.fake_mode for part in fakes if isinstance(part, FakeTensor)]
    mode = modes[0] if modes else _mode_of(graph)
    with mode:
        node.meta["val"] = target(*fx.node.map_arg(args, lambda part: part.meta["val"]), **(named or {}))
    return node


def _mode_of(graph: fx.Graph) -> FakeTensorMode:
    """The fake mode that the graph was traced in."""
    values = (node.meta.get("val") for node in graph.nodes)
    return next(value.fake_mode for value in values if isinstance(value, FakeTensor))
