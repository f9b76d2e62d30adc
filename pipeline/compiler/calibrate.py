"""Finds the scales of fp8 on the user's images, and the layers that have to stay in fp16 for the masks' sake."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pipeline.compiler.exported_net import ExportedNet
from pipeline.compiler.fp8_values import groups, quantisable, scales
from pipeline.compiler.lowering import Plan, lower
from pipeline.measure.accuracy import classes

Run = Callable[[Tensor], Tensor]
TRIED_AGAIN = 4  # layers at each step: trying all of some forty would take minutes


def largest(net: ExportedNet, batches: list[Tensor]) -> dict[str, float]:
    """The largest magnitude over batches [batch, channels, height, width] of every value that could be in fp8."""
    walk = _Largest(net)
    for batch in batches:
        walk.run(batch)
    return {name: float(amount) for name, amount in walk.seen.items()}


class _Largest(fx.Interpreter):
    """Runs a graph and keeps the largest magnitude of its values, on their device."""

    def __init__(self, net: ExportedNet) -> None:
        super().__init__(net.module)
        self.wanted = set().union(*groups(net))
        self.seen: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if n in self.wanted:
            amount = value.abs().amax().float()
            self.seen[n.name] = torch.maximum(amount, self.seen.get(n.name, amount))
        return value


@dataclass(frozen=True)
class Budget:
    """How far fp8 may be from fp16."""

    flips: float  # share of pixels that may change their class
    error: float  # relative L2 of the logits

    def used(self, run: Run, batches: list[Tensor], exact: list[Tensor]) -> float:
        """How much of the budget a net takes, of the part that it takes most of; 1 is all of it.

        Args:
            run: the net to judge.
            batches: its inputs [batch, channels, height, width].
            exact: the logits to be met [batch, classes, height, width], one tensor a batch.
        """
        flips = error = size = 0.0
        for batch, logits in zip(batches, exact, strict=True):
            given = run(batch).float()
            flips += float((classes(given) != classes(logits)).float().mean()) / len(batches)
            error += float((given - logits).square().sum())
            size += float(logits.square().sum())
        return max(flips / self.flips, math.sqrt(error / (size or 1.0)) / self.error)


def keep_for(
    net: ExportedNet, seen: dict[str, float], batches: list[Tensor], budget: Budget
) -> tuple[list[str], dict[str, float]]:
    """The layers to keep in fp16 so that the budget holds, and why those.

    One after the other is kept, each time the one that saves most of the budget beside those kept already: a layer's
    gain depends on them, since it shares its input's type with its neighbours. All are tried at first; then, at each
    step, those few that promised most when they were tried last. The references compute, so that no tile is needed.

    Args:
        net: with its layers.
        seen: from `largest`.
        batches: what the budget is judged on [batch, channels, height, width].
        budget: to be kept.

    Returns:
        The names kept, and for every layer how much of the budget it saved, or would have saved, when it was last
        tried; none of either where all fp8 is within the budget.
    """
    names = quantisable(net)
    exact = [lower(net, Plan())(batch).float() for batch in batches]

    def cost(keep: list[str]) -> float:
        return budget.used(lower(net, Plan(scales(net, keep, seen))), batches, exact)

    kept: list[str] = []
    gains: dict[str, float] = {}
    used = cost(kept)
    while used > 1 and len(kept) < len(names):
        rest = sorted((name for name in names if name not in kept), key=lambda name: -gains.get(name, 0.0))
        tried = rest[:TRIED_AGAIN] if gains else rest
        left = {name: cost([*kept, name]) for name in tried}
        gains |= {name: used - after for name, after in left.items()}
        best = min(tried, key=left.__getitem__)
        kept.append(best)
        used = left[best]
    return kept, gains
