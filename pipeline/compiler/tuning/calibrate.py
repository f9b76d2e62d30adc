"""Scales of fp8 from images, and the layers that stay in fp16 to protect accuracy at the least cost in time."""

import math
from collections.abc import Callable, Container, Sequence

import torch
from torch import Tensor, fx

from pipeline.compiler.batch import Batch, batched, of_batches
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fp8_values import fp8_groups, layers_in_fp8, quantisable_together, scales
from pipeline.compiler.graph.fx_graph import part_of_answer, shape_of
from pipeline.compiler.graph.layers import OUT, POOLED, KernelLayer, UpsampledLayer, inputs_of, layer_of
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.tuning.budget import Budget, filled


def largest(net: ExportedNet, batches: Sequence[Tensor | Batch]) -> dict[str, float]:
    """Return the largest magnitude over batches of every value that could be in fp8, by its node's name."""
    walk = _Largest(net)
    for batch in batches:
        walk.run(*batched(batch))
    return {name: float(amount) for name, amount in walk.seen.items()}


class _Largest(fx.Interpreter):
    """Runs a graph and keeps the largest magnitude of its values, on their device."""

    def __init__(self, net: ExportedNet) -> None:
        super().__init__(net.module)
        self.wanted = set().union(*fp8_groups(net, []))
        self.seen: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> object:
        value = super().run_node(n)
        if n in self.wanted:
            amount = value.abs().amax().float()
            self.seen[n.name] = torch.maximum(amount, self.seen.get(n.name, amount))
        return value


def keep_for(
    net: ExportedNet, seen: dict[str, float], batches: Sequence[Tensor | Batch], budget: Budget
) -> tuple[list[str], dict[str, float]]:
    """Return the layers to keep in fp16 so that the budget holds on batches, as `filled`; the references compute."""

    def answers(plan: Plan) -> Callable[[Batch], Tensor]:
        return of_batches(lower(net, plan))

    given = list(map(batched, batches))
    exact = list(map(answers(Plan()), given))

    def cost(keep: list[str]) -> float:
        return budget.used(answers(Plan(scales(net, keep, seen))), given, exact)

    def price(keep: list[str]) -> float:
        return least_seconds(net, scales(net, keep, seen))

    return filled(quantisable_together(net), cost, price)


# An H200's: FLOP/s of one product at its power cap, bytes/s of a copy (docs/kernels.md). Only what one layer takes
# beside another counts here.
FP16_PACE, FP8_PACE, BYTES_PACE = 684e12, 1279e12, 4.24e12


def least_seconds(net: ExportedNet, stored_fp8: Container[str]) -> float:
    """Return seconds of a batch where each layer takes as long as its products or its bytes, whichever take longer."""
    fast, total = set(layers_in_fp8(net, stored_fp8)), 0.0
    for node in net.module.graph.nodes:
        if layer := layer_of(net.module, node):
            pace = FP8_PACE if layer.name in fast else FP16_PACE
            total += max(flops_of_layer(node, layer) / pace, _bytes(node, stored_fp8) / BYTES_PACE)
    return total


def flops_of_layer(node: fx.Node, layer: KernelLayer) -> float:
    """Return the FLOPs of a batch, 2 for a multiply-add, of the layer that a node calls."""
    shapes = [shape_of(value) for value in inputs_of(node)]
    if isinstance(layer, UpsampledLayer):
        return shapes[0][0] * layer.flops_per_image(shapes)
    return layer.op.flops(shapes[0], shapes[0][1] if layer.bias is None else len(layer.bias))


def _bytes(node: fx.Node, stored_fp8: Container[str]) -> int:
    """Return what the layer that a node calls reads, and stores for other layers."""
    stored = [user for user in node.users if part_of_answer(user) in (OUT, POOLED)]
    values = [*inputs_of(node), *stored]
    return sum(math.prod(shape_of(value)) * (1 if value.name in stored_fp8 else 2) for value in values)
