"""Instance and group norm as a reduction and pointwise operations, which leave the channels where they lie.

ATen's own instance norm answers in NCHW, and its group norm is a kernel that nothing fuses with; of these operations
Inductor makes one pass that sums and one that normalises, the activation and the residual with it.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import Argument

from pipeline.compiler.exported_net import ExportedNet
from pipeline.compiler.fx_graph import add_constant, arguments, calls, gives_image, module_of, shape_of

aten = torch.ops.aten
INSTANCE, GROUP = "aten.instance_norm.default", "aten.group_norm.default"


def norms_in_nhwc(net: ExportedNet) -> list[str]:
    """(x - mean) / √(variance + eps) · weight + bias in fp32, over the pixels of a channel or a group of channels.

    A norm in fp64 stays as it is: for the digits that fp32 hasn't, the net's own code asks for it.
    """
    matched = []
    for norm in calls(net.module.graph, INSTANCE, GROUP):
        given = arguments(norm)
        if not gives_image(norm) or not given.get("use_input_stats", True):
            continue
        if norm.meta["val"].dtype == torch.float64:
            continue
        channels = shape_of(norm)[1]
        answer = _normalised(net, norm, given, int(given.get("num_groups", channels)))
        norm.replace_all_uses_with(answer)
        net.module.graph.erase_node(norm)
        matched.append(module_of(norm))
    return matched


def _normalised(net: ExportedNet, norm: fx.Node, given: dict[str, Any], groups: int) -> fx.Node:
    graph, shape = net.module.graph, list(shape_of(norm))
    batch, channels, height, width = shape
    grouped = groups < channels
    with graph.inserting_before(norm):

        def call(target: Callable[..., object], *args: Argument, **named: Argument) -> fx.Node:
            return graph.call_function(target, args, named)

        x = call(aten.to.dtype, given["input"], torch.float32)
        whole = call(aten.view.default, x, [batch, groups, channels // groups, height, width]) if grouped else x
        both = call(aten.var_mean.correction, whole, [2, 3, 4] if grouped else [2, 3], correction=0, keepdim=True)
        variance, mean = call(operator.getitem, both, 0), call(operator.getitem, both, 1)
        factor = call(aten.rsqrt.default, call(aten.add.Tensor, variance, given["eps"]))
        y = call(aten.mul.Tensor, call(aten.sub.Tensor, whole, mean), factor)
        y = call(aten.view.default, y, shape) if grouped else y
        for target, name in ((aten.mul.Tensor, "weight"), (aten.add.Tensor, "bias")):
            known = net.constant(given[name])
            if known is not None:
                y = call(target, y, add_constant(net.module, f"{module_of(norm)}.{name}", _for_channels(known)))
            elif given[name] is not None:
                computed = call(aten.to.dtype, given[name], torch.float32)
                y = call(target, y, call(aten.reshape.default, computed, [1, channels, 1, 1]))
        answer = call(aten.to.dtype, y, norm.meta["val"].dtype)
    answer.meta = dict(norm.meta)
    return answer


def _for_channels(vector: Tensor) -> Tensor:
    """A vector [channels] as fp32 [1, channels, 1, 1]."""
    return vector.float().reshape(1, -1, 1, 1)
