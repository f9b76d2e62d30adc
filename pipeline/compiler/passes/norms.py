"""Instance and group norms: their sums where a kernel can make them, and the rest in operations that stay in NHWC.

ATen's own instance norm answers in NCHW, and its group norm is a kernel that nothing fuses with. Of a reduction and
pointwise operations Inductor makes one pass that sums and one that normalises, the activation and the residual with it.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import Argument

from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fx_graph import (
    ADDITION,
    MULTIPLICATION,
    add_constant,
    arguments,
    calls,
    gives_image,
    is_call,
    module_of,
    only_user,
    part_of_answer,
    replace,
    shape_of,
)
from pipeline.compiler.graph.layers import STATISTICS, KernelLayer, producer
from pipeline.compiler.passes.kernel_folding import TO, of_few_channels
from pipeline.kernels import conv_first
from pipeline.kernels.common.activation import NONE
from pipeline.kernels.common.block_statistics import blocks_of, fits_kernels, grouped

aten = torch.ops.aten
VAR_MEAN, VIEW = "aten.var_mean.correction", "aten.view.default"
LEAST_CHANNELS = 32  # with fewer most rows of a product are empty, unless these are pixels


def sum_where_made(net: ExportedNet) -> list[str]:
    """Merge the mean and variance of a layer's output from those of the blocks of pixels that its kernel sums."""
    matched = []
    for both in calls(net.module.graph, VAR_MEAN):
        view = both.all_input_nodes[0]
        cast = view.all_input_nodes[0] if is_call(view, VIEW) else view
        made = producer(net.module, cast.args[0]) if is_call(cast, TO) else None
        if made is None or "statistics" not in made[1].op.folds or made[1].activation != NONE:
            continue
        node, layer = made
        batch, channels, height, width = shape_of(cast.all_input_nodes[0])
        if (
            not (channels >= LEAST_CHANNELS or rows_are_pixels(layer))
            or layer.statistics
            or layer.head is not None
            or not layer.has_whole_blocks(height)
        ):
            continue
        layer.statistics, phases = True, layer.op.phases
        group_width = int(view.args[1][2]) if is_call(view, VIEW) else None  # type: ignore[index,arg-type]
        with net.module.graph.inserting_before(both):
            statistics = net.module.graph.call_function(operator.getitem, (node, STATISTICS))
            statistics.meta["val"] = torch.empty(batch, blocks_of(height, width, phases), 2, channels, device="meta")
            known = net.module.graph.call_function(variance_and_mean, (statistics, height, width, phases, group_width))
        if group_width is None or fits_kernels(group_width, channels):
            _norm_by_factors(both, cast, statistics, phases, group_width or 1)
        replace(both, known)
        matched.append(layer.name)
    return matched


def rows_are_pixels(layer: KernelLayer) -> bool:
    """Return whether a layer's products have pixels for rows, so that few channels leave none empty."""
    if layer.op in (conv_first.OP, conv_first.STRIDED_OP):
        return True
    return layer.weight is not None and of_few_channels(layer.op, layer.weight.shape)


def _norm_by_factors(both: fx.Node, x: fx.Node, statistics: fx.Node, phases: int, group_width: int) -> None:
    """Let a norm of x be x · factor + shift: a pass then reads two vectors instead of four."""
    parts = {part_of_answer(user): user for user in both.users}
    away = only_user(parts[1]) if len(parts) == 2 else None
    last = only_user(away) if away is not None and away.args[0] is both.args[0] else None
    if last is None or not is_call(last, MULTIPLICATION):
        return
    if both.args[0] is not x:  # in groups, and then in channels again
        last = only_user(last)
        if last is None or not is_call(last, VIEW):
            return
    last, ends = _with_ends(last)
    variance = only_user(parts[0])
    assert variance is not None
    graph, size = both.graph, list(shape_of(x.all_input_nodes[0])[2:])
    with graph.inserting_before(last):
        given = (statistics, *ends, variance.args[1], size, phases, group_width)
        factors = graph.call_function(factor_and_shift, given)
        factor, shift = (graph.call_function(operator.getitem, (factors, place)) for place in range(2))
        scaled = graph.call_function(aten.mul.Tensor, (x, factor))
        replace(last, graph.call_function(aten.add.Tensor, (scaled, shift)))


def _with_ends(last: fx.Node) -> tuple[fx.Node, list[fx.Node | None]]:
    """Return what a normed value is after weight and bias, and these; None for one that is missing or computed."""
    ends: list[fx.Node | None] = []
    for operation in (MULTIPLICATION, ADDITION):
        user = only_user(last)
        constant = user.args[1] if is_call(user, operation) and user is not None else None
        end = constant if isinstance(constant, fx.Node) and constant.op == "get_attr" else None
        ends.append(end)
        last = user if end is not None and user is not None else last
    return last, ends


def factor_and_shift(
    statistics: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, size: list[int], *how: int
) -> tuple[Tensor, Tensor]:
    """Return factor and shift [N, out, 1, 1] of a norm with weight and bias [1, out, 1, 1].

    `how` is the phases of the statistics, and how many channels are normed together.
    """
    ends = (None if part is None else part.flatten() for part in (weight, bias))
    factors = torch.ops.unet_ladder.norm_factors(statistics, *ends, eps, size, *how)
    return factors[0][:, :, None, None], factors[1][:, :, None, None]


def variance_and_mean(
    statistics: Tensor, height: int, width: int, phases: int, group_width: int | None
) -> tuple[Tensor, Tensor]:
    """Return what `torch.var_mean` gives of a map, from its statistics [N, blocks, 2, out], its dimensions kept.

    [N, out, 1, 1] each; of groups of channels [N, groups, 1, 1, 1].
    """
    mean, variance = torch.ops.unet_ladder.merged_statistics(statistics, height, width, phases)
    if group_width is None:
        return variance[:, :, None, None], mean[:, :, None, None]
    mean, variance = grouped(mean, variance, group_width)
    return variance[:, :, None, None, None], mean[:, :, None, None, None]


INSTANCE, GROUP = "aten.instance_norm.default", "aten.group_norm.default"


def norms_in_nhwc(net: ExportedNet) -> list[str]:
    """Write norms as (x - mean) / √(variance + eps) · weight + bias in fp32, over a channel's or a group's pixels.

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
    """Return a vector [channels] as fp32 [1, channels, 1, 1]."""
    return vector.float().reshape(1, -1, 1, 1)
