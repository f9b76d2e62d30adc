"""Squeeze-and-excitation: summed where the map is made, one kernel between, multiplied where the map is read."""

import operator

import torch
from torch import Tensor, fx

from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fx_graph import (
    MULTIPLICATION,
    add_constant,
    arguments,
    calls,
    gives_image,
    is_call,
    module_of,
    only_user,
    replace,
    shape_of,
    source,
)
from pipeline.compiler.graph.layers import STATISTICS, GatedLayer, KernelLayer, producer, put_layer
from pipeline.compiler.passes.kernel_folding import PRELU, RECOGNISABLE
from pipeline.compiler.passes.kernel_matching import CONV2D, describe
from pipeline.compiler.passes.norms import LEAST_CHANNELS
from pipeline.kernels.common.activation import Activation, recognised
from pipeline.kernels.common.block_statistics import blocks_of
from pipeline.kernels.excitation import MOST_INNER

POOL, MEAN = "aten.adaptive_avg_pool2d.default", "aten.mean.dim"
GATES = {"aten.sigmoid.default": "sigmoid", "aten.hardsigmoid.default": "hardsigmoid"}


def take_gated_conv1x1(net: ExportedNet) -> list[str]:
    """Let a 1×1 convolution that alone reads a map times a factor for each image and channel multiply by it."""
    matched = []
    for conv in calls(net.module.graph, CONV2D):
        seen, product = describe(net, conv), source(conv)
        parts = factors_and_map(product) if is_call(product, MULTIPLICATION) else None
        if seen is None or parts is None or only_user(product) is not conv:
            continue
        if not seen.is_square(1, 1, 0) or not seen.suits_bulk_copies or seen.in_size == (1, 1):
            continue
        given = arguments(conv)
        weight, bias = net.constant(given["weight"]), net.constant(given["bias"])
        assert weight is not None
        name = module_of(conv) or conv.name
        layer = GatedLayer(name, weight, weight.new_zeros(len(weight)) if bias is None else bias)
        put_layer(net, conv, layer, [parts[1], parts[0]])
        matched.append(name)
    return matched


def factors_and_map(product: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """Return what a multiplication multiplies: [N, channels, 1, 1] and [N, channels, H, W]; None for anything else."""
    both = [value for value in product.args if isinstance(value, fx.Node) and gives_image(value)]
    if len(both) < 2:
        return None
    factors, x = sorted(both, key=lambda value: shape_of(value)[2:])
    same = factors.meta["val"].dtype == x.meta["val"].dtype
    return (factors, x) if same and shape_of(factors) == (*shape_of(x)[:2], 1, 1) else None


def excite_where_summed(net: ExportedNet) -> list[str]:
    """Make the factors of squeeze-and-excitation in one kernel, of what the layer that makes the map sums of it."""
    matched = []
    for pool in calls(net.module.graph, POOL, MEAN):
        made = producer(net.module, pool.args[0]) if _is_global(pool) else None
        chain = _two_layers(net, pool) if made is not None and _can_sum(made[1]) else None
        if made is None or chain is None:
            continue
        node, layer = made
        layer.statistics, (x, gate) = True, (source(pool), chain[-1])
        batch, channels, height, width = shape_of(x)
        size, phases = [height, width], layer.op.phases
        with net.module.graph.inserting_before(gate):
            statistics = net.module.graph.call_function(operator.getitem, (node, STATISTICS))
            statistics.meta["val"] = torch.empty(batch, blocks_of(height, width, phases), 2, channels, device="meta")
            parts = _constants(net, chain)
            activation = _activation(chain[1])
            assert activation is not None
            ends = (activation.name, activation.slope, GATES[str(gate.target)], size, phases)
            factors = net.module.graph.call_function(factors_of, (statistics, parts, *ends))
        factors.meta = dict(gate.meta)
        replace(gate, factors)
        matched.append(layer.name)
    return matched


def factors_of(statistics: Tensor, weights: list[Tensor], *ends: object) -> Tensor:
    """Return the factors [N, out, 1, 1] of a map with statistics [N, blocks, 2, out]; arguments as of the operation."""
    factors: Tensor = torch.ops.unet_ladder.excitation(statistics, weights, *ends)
    return factors[:, :, None, None]


def _is_global(pool: fx.Node) -> bool:
    """Return whether a node takes the mean over all pixels of a map, and keeps both dimensions."""
    given = arguments(pool)
    if is_call(pool, POOL):
        return list(given["output_size"]) == [1, 1]
    return sorted(dim % 4 for dim in given["dim"] or []) == [2, 3] and given["keepdim"] and given["dtype"] is None


def _can_sum(layer: KernelLayer) -> bool:
    wide = layer.op.by_channel or (layer.bias is not None and len(layer.bias) >= LEAST_CHANNELS)
    return "statistics" in layer.op.folds and wide and not layer.statistics and layer.head is None


def _two_layers(net: ExportedNet, pool: fx.Node) -> list[fx.Node] | None:
    """Return the 1×1 convolution after a pool, its activation, the second one and the gate; None for anything else."""
    chain: list[fx.Node] = []
    before = pool
    for names in ((CONV2D,), (*RECOGNISABLE - {PRELU},), (CONV2D,), (*GATES,)):
        user = only_user(before)
        if user is None or not is_call(user, *names):
            return None
        chain.append(user)
        before = user
    seen = [describe(net, conv) for conv in (chain[0], chain[2])]
    if any(layer is None or not layer.is_square(1, 1, 0) for layer in seen) or _activation(chain[1]) is None:
        return None
    return chain if shape_of(chain[0])[1] <= MOST_INNER and shape_of(chain[2])[1] == shape_of(pool)[1] else None


def _activation(node: fx.Node) -> Activation | None:
    return recognised(str(node.target), node.args[1:], node.kwargs)


def _constants(net: ExportedNet, chain: list[fx.Node]) -> list[fx.Node]:
    """Return nodes for both layers' weights [inner, channels], each followed by one for its bias in fp32."""
    constants = []
    for conv, turned in ((chain[0], False), (chain[2], True)):
        given, name = arguments(conv), module_of(conv)
        weight, bias = net.constant(given["weight"]), net.constant(given["bias"])
        assert weight is not None
        matrix = weight.flatten(1).T if turned else weight.flatten(1)
        shift = weight.new_zeros(len(weight)) if bias is None else bias
        constants.append(add_constant(net.module, f"{name}.weight", matrix.to(net.dtype).contiguous()))
        constants.append(add_constant(net.module, f"{name}.bias", shift.float().contiguous()))
    return constants
