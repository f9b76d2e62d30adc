"""Finds the scales of fp8 on the user's images, and the layers that have to stay in fp16 for the masks' sake."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx

from pipeline.compiler.batch import Batch, batched, of_batches
from pipeline.compiler.budget import Budget
from pipeline.compiler.exported_net import ExportedNet
from pipeline.compiler.filled_budget import filled
from pipeline.compiler.fp8_values import fp8_groups, quantisable_together, scales
from pipeline.compiler.least_time import least_seconds
from pipeline.compiler.lowering import Plan, lower


def largest(net: ExportedNet, batches: Sequence[Tensor | Batch]) -> dict[str, float]:
    """The largest magnitude over batches [batch, channels, height, width] of every value that could be in fp8.

    Of a net with several inputs a batch has all of them.
    """
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
    """The layers to keep in fp16 so that the budget holds, and why those.

    The references compute, so that no tile is needed.

    Args:
        net: with its layers.
        seen: from `largest`.
        batches: what the budget is judged on, [batch, channels, height, width] or all inputs of a net of several.
        budget: to be kept.

    Returns:
        As `filled`.
    """

    def answers(plan: Plan) -> Callable[[Batch], Tensor]:
        return of_batches(lower(net, plan))

    given = list(map(batched, batches))
    exact = list(map(answers(Plan()), given))

    def cost(keep: list[str]) -> float:
        return budget.used(answers(Plan(scales(net, keep, seen))), given, exact)

    def price(keep: list[str]) -> float:
        return least_seconds(net, scales(net, keep, seen))

    return filled(quantisable_together(net), cost, price)
