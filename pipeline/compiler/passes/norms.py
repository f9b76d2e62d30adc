"""Sums over a map, made by the kernel that makes the map: of instance and group norms, of squeeze-and-excitation.

With ATen's instance and group norm Inductor fuses nothing; of a reduction and pointwise operations it makes a pass that
sums and one that normalises, with the activation and the residual.
"""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import Argument

from pipeline.compiler.graph import fx_graph as nodes
from pipeline.compiler.graph.exported_net import ExportedNet, Normed
from pipeline.compiler.graph.layers import KernelLayer, producer, summed
from pipeline.compiler.passes.kernel_folding import PRELU, RECOGNISABLE, describe, of_few_channels
from pipeline.kernels import conv3x3
from pipeline.kernels.common.activation import NONE, Activation, recognised
from pipeline.kernels.common.block_statistics import ROWS, fits_kernels, grouped
from pipeline.kernels.conv3x3 import conv3x3_narrow
from pipeline.kernels.norm_pass import MOST_INNER

aten = torch.ops.aten
INSTANCE, GROUP = "aten.instance_norm.default", "aten.group_norm.default"
VAR_MEAN = "aten.var_mean.correction"
POOL, MEAN = "aten.adaptive_avg_pool2d.default", "aten.mean.dim"
GATES = {"aten.sigmoid.default": "sigmoid", "aten.hardsigmoid.default": "hardsigmoid"}
LEAST_CHANNELS = 32  # with fewer most rows of a product are empty, unless these are pixels


def norms_in_nhwc(net: ExportedNet) -> Iterator[str]:
    """Write norms as (x - mean) / √(variance + eps) · weight + bias in fp32, over channels or groups; none in fp64."""
    for norm in nodes.calls(net.module.graph, INSTANCE, GROUP):
        given = nodes.arguments(norm)
        in_fp64 = norm.meta["val"].dtype == torch.float64
        if in_fp64 or not nodes.gives_image(norm) or not given.get("use_input_stats", True):
            continue
        nodes.replace(norm, _normalised(net, norm, given, int(given.get("num_groups", nodes.shape_of(norm)[1]))))
        yield nodes.module_of(norm)


def _normalised(net: ExportedNet, norm: fx.Node, given: dict[str, Any], groups: int) -> fx.Node:
    graph, shape = net.module.graph, list(nodes.shape_of(norm))
    batch, channels, height, width = shape
    in_groups = groups < channels
    with graph.inserting_before(norm):

        def call(target: Callable[..., object], *args: Argument, **named: Argument) -> fx.Node:
            return graph.call_function(target, args, named)

        x = call(aten.to.dtype, given["input"], torch.float32)
        whole = call(aten.view.default, x, [batch, groups, channels // groups, height, width]) if in_groups else x
        both = call(aten.var_mean.correction, whole, [2, 3, 4] if in_groups else [2, 3], correction=0, keepdim=True)
        variance, mean = call(operator.getitem, both, 0), call(operator.getitem, both, 1)
        factor = call(aten.rsqrt.default, call(aten.add.Tensor, variance, given["eps"]))
        y = call(aten.mul.Tensor, call(aten.sub.Tensor, whole, mean), factor)
        y = call(aten.view.default, y, shape) if in_groups else y
        bare, ends = y, list[fx.Node | None]()
        for target, name in ((aten.mul.Tensor, "weight"), (aten.add.Tensor, "bias")):
            known, end = net.constant(given[name]), None
            if known is not None:
                row = known.float().reshape(1, -1, 1, 1)
                end = nodes.add_constant(net.module, f"{nodes.module_of(norm)}.{name}", row)
            elif given[name] is not None:
                computed = call(aten.to.dtype, given[name], torch.float32)
                end = call(aten.reshape.default, computed, [1, channels, 1, 1])
            y = y if end is None else call(target, y, end)
            ends.append(end)
        answer = call(aten.to.dtype, y, norm.meta["val"].dtype)
    answer.meta = dict(norm.meta)
    constant = all(end is None or end.op == "get_attr" for end in ends)
    weight, bias = ends if constant else (None, None)
    net.norms[both] = Normed(x, channels // groups, weight, bias, given["eps"], y if constant else bare)
    return answer


def sum_where_made(net: ExportedNet) -> Iterator[str]:
    """Merge the mean and variance of a layer's output from those of the blocks of pixels that its kernel sums.

    What is added to all pixels alike, such as a time embedding, moves the means alone.
    """
    graph = net.module.graph
    for both, normed in [(both, net.norms[both]) for both in nodes.calls(graph, VAR_MEAN) if both in net.norms]:
        added, value = _added_to_all(nodes.source(normed.x))
        made = producer(net.module, value)
        if made is None or made[1].activation != NONE or not _can_sum(made[1]):
            continue
        node, layer = made
        shape = nodes.shape_of(nodes.source(normed.x))
        channels, height, width = shape[1:]
        slices = int(layer.slices * layer.op.growth_deep)  # over two of which no block of rows may reach
        whole = nodes.shape_of(value) == shape and (slices == 1 or height // slices % ROWS == 0)
        if not whole or not (channels >= LEAST_CHANNELS or _rows_are_pixels(layer)):
            continue
        phases, group_width = layer.op.phases, normed.group_width
        with graph.inserting_before(both):
            statistics = summed(node, layer, shape)
            if added is not None:
                statistics = graph.call_function(with_means_moved, (statistics, added))
        if fits_kernels(group_width, channels):  # a pass then reads two vectors, not four
            with graph.inserting_before(normed.last):
                how = (normed.weight, normed.bias, normed.eps, [height, width], phases, group_width)
                factors = graph.call_function(factor_and_shift, (statistics, *how))
                factor, shift = (graph.call_function(operator.getitem, (factors, place)) for place in range(2))
                scaled = graph.call_function(aten.mul.Tensor, (normed.x, factor))
                nodes.replace(normed.last, graph.call_function(aten.add.Tensor, (scaled, shift)))
        else:
            with graph.inserting_before(both):
                known = graph.call_function(variance_and_mean, (statistics, height, width, phases, group_width))
            nodes.replace(both, known)
        yield layer.name


def _added_to_all(value: fx.Node) -> tuple[fx.Node | None, fx.Node]:
    """Return what a sum [N, C, H, W] adds to all pixels, [N or 1, C, 1, 1], and the other part; None and any value."""
    parts = value.all_input_nodes if nodes.is_call(value, nodes.ADDITION) and not value.kwargs else []
    for added, other in zip(parts, parts[::-1], strict=True) if len(parts) == 2 else ():
        if nodes.gives_image(added) and nodes.shape_of(added)[2:] == (1, 1) and nodes.shape_of(added)[1] > 1:
            return added, other
    return None, value


def with_means_moved(statistics: Tensor, added: Tensor) -> Tensor:
    """Return statistics [N, blocks, 2, C] of a map to which [N or 1, C, 1, 1] was added."""
    means = added.float().reshape(len(added), 1, 1, -1)
    return statistics + torch.cat([means, torch.zeros_like(means)], 2)


def _can_sum(layer: KernelLayer) -> bool:
    return "statistics" in layer.op.folds and not layer.statistics and layer.head is None


def _rows_are_pixels(layer: KernelLayer) -> bool:
    """Return whether a layer's products have pixels for rows, so that few channels leave none empty."""
    if layer.op.reads_image or layer.weight is None:
        return layer.op.reads_image
    outer, inner = layer.weight.shape[:2]
    of_volumes = layer.op is conv3x3.VOLUME_OP and layer.slices % 2 == 0
    few = outer <= conv3x3_narrow.MOST_OF_SLICE and inner <= conv3x3_narrow.MOST_IN
    return (of_volumes and few) or of_few_channels(layer.op, layer.weight.shape)


def factor_and_shift(
    statistics: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, size: list[int], *how: int
) -> tuple[Tensor, Tensor]:
    """Return factor and shift [N, out, 1, 1] of a norm; `how` is the phases and the group's width."""
    ends = (None if part is None else part.flatten() for part in (weight, bias))
    factors = torch.ops.unet_ladder.norm_factors(statistics, *ends, eps, size, *how)
    return factors[0][:, :, None, None], factors[1][:, :, None, None]


def variance_and_mean(
    statistics: Tensor, height: int, width: int, phases: int, group_width: int
) -> tuple[Tensor, Tensor]:
    """Return what `torch.var_mean` gives of groups of a width that no kernel has: [N, groups, 1, 1, 1] each."""
    mean, variance = torch.ops.unet_ladder.merged_statistics(statistics, height, width, phases)
    mean, variance = grouped(mean, variance, group_width)
    return variance[:, :, None, None, None], mean[:, :, None, None, None]


def excite_where_summed(net: ExportedNet) -> Iterator[str]:
    """Make the factors of squeeze-and-excitation in one kernel, of what the layer that makes the map sums of it."""
    graph = net.module.graph
    for pool in nodes.calls(graph, POOL, MEAN):
        made = producer(net.module, pool.args[0]) if _is_global(pool) else None
        found = _two_layers(net, pool) if made is not None and _can_sum(made[1]) else None
        if made is None or found is None:
            continue
        (node, layer), (chain, activation) = made, found
        if not layer.op.by_channel and (layer.bias is None or len(layer.bias) < LEAST_CHANNELS):
            continue
        shape, gate = nodes.shape_of(nodes.source(pool)), chain[-1]
        with graph.inserting_before(gate):
            statistics = summed(node, layer, shape)
            parts = [*_constants(net, chain[0], turned=False), *_constants(net, chain[2], turned=True)]
            ends = (activation.name, activation.slope, GATES[str(gate.target)], list(shape[2:]), layer.op.phases)
            factors = graph.call_function(factors_of, (statistics, parts, *ends))
        factors.meta = dict(gate.meta)
        nodes.replace(gate, factors)
        yield layer.name


def factors_of(statistics: Tensor, weights: list[Tensor], *ends: object) -> Tensor:
    """Return the factors [N, out, 1, 1] of a map with statistics [N, blocks, 2, out]; arguments as of the operation."""
    factors: Tensor = torch.ops.unet_ladder.excitation(statistics, weights, *ends)
    return factors[:, :, None, None]


def _is_global(pool: fx.Node) -> bool:
    given = nodes.arguments(pool)
    if nodes.is_call(pool, POOL):
        return list(given["output_size"]) == [1, 1]
    return sorted(dim % 4 for dim in given["dim"] or []) == [2, 3] and given["keepdim"] and given["dtype"] is None


def _two_layers(net: ExportedNet, pool: fx.Node) -> tuple[list[fx.Node], Activation] | None:
    """Return what follows a pool (a 1×1 convolution, an activation, another, the gate), and the activation; or None."""
    chain: list[fx.Node] = []
    before = pool
    for names in ((nodes.CONV2D,), (*RECOGNISABLE - {PRELU},), (nodes.CONV2D,), (*GATES,)):
        user = nodes.only_user(before)
        if not nodes.is_call(user, *names):
            return None
        chain.append(user)
        before = user
    first, between, second, _ = chain
    seen = [describe(net, conv) for conv in (first, second)]
    if any(layer is None or not layer.is_square(1, 1, 0) for layer in seen):
        return None
    activation = recognised(str(between.target), between.args[1:], between.kwargs)
    fits = nodes.shape_of(first)[1] <= MOST_INNER and nodes.shape_of(second)[1] == nodes.shape_of(pool)[1]
    return (chain, activation) if fits and activation is not None else None


def _constants(net: ExportedNet, conv: fx.Node, *, turned: bool) -> list[fx.Node]:
    name, held = nodes.module_of(conv), net.parameters(conv)
    assert held is not None
    matrix = held[0].flatten(1).T if turned else held[0].flatten(1)
    weight = nodes.add_constant(net.module, f"{name}.weight", matrix.to(net.dtype).contiguous())
    return [weight, nodes.add_constant(net.module, f"{name}.bias", held[1].float().contiguous())]
