"""Finds the scales of fp8 on the user's images, and the operations that have to stay in fp16 for the masks' sake."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from pipeline.compiler.graph import Graph
from pipeline.compiler.lowering import Program
from pipeline.compiler.quantize import READS_FP8, Precision, fp8_values, scales
from pipeline.measure.accuracy import classes

Make = Callable[[Precision], Program]
TRIED_AGAIN = 4  # operations at each step: trying all of some forty would take minutes


def largest(program: Program, batches: list[Tensor]) -> dict[str, float]:
    """The largest magnitude of every value over batches [batch, channels, height, width]."""
    seen: dict[str, float] = {}
    for batch in batches:
        seen = {value: max(amount, seen.get(value, 0.0)) for value, amount in program.largest(batch).items()}
    return seen


def mixed(graph: Graph, seen: dict[str, float], keep: list[str], compute_dtype: str) -> Precision:
    """fp8 wherever it goes, but for the operations in `keep`."""
    return Precision(compute_dtype, fp8_values(graph, keep), scales(graph, seen))


def quantisable(graph: Graph) -> list[str]:
    """The operations that can read fp8, and whose input can be stored in it."""
    stored = fp8_values(graph, [])
    return [node.name for node in graph.nodes if node.op in READS_FP8 and node.inputs[0] in stored]


@dataclass(frozen=True)
class Budget:
    """How far fp8 may be from fp16."""

    flips: float  # share of pixels that may change their class
    error: float  # relative L2 of the logits

    def used(self, program: Program, batches: list[Tensor], exact: list[Tensor]) -> float:
        """How much of the budget a program takes, of the part that it takes most of; 1 is all of it.

        Args:
            program: the one to judge.
            batches: its inputs [batch, channels, height, width].
            exact: the logits to be met [batch, classes, height, width], one tensor a batch.
        """
        flips = error = size = 0.0
        for batch, logits in zip(batches, exact, strict=True):
            given = program(batch).float()
            flips += float((classes(given) != classes(logits)).float().mean()) / len(batches)
            error += float((given - logits).square().sum())
            size += float(logits.square().sum())
        return max(flips / self.flips, math.sqrt(error / (size or 1.0)) / self.error)


def keep_for(
    graph: Graph, make: Make, precision: Callable[[list[str]], Precision], batches: list[Tensor], budget: Budget
) -> tuple[list[str], dict[str, float]]:
    """The operations to keep in fp16 so that the budget holds, and why those.

    One after the other is kept, each time the one that saves most of the budget beside those kept already: an
    operation's gain depends on them, since it shares its input's type with its neighbours. All are tried at first;
    then, at each step, those few that promised most when they were tried last.

    Args:
        graph: rewritten.
        make: a program of a precision.
        precision: the precision that keeps these operations in fp16.
        batches: what the budget is judged on [batch, channels, height, width].
        budget: to be kept.

    Returns:
        The names kept, and for every operation how much of the budget it saved, or would have saved, when it was last
        tried; none of either where all fp8 is within the budget.
    """
    names = quantisable(graph)
    reference = make(precision(names))
    exact = [reference(batch).float() for batch in batches]
    kept: list[str] = []
    gains: dict[str, float] = {}
    used = budget.used(make(precision(kept)), batches, exact)
    while used > 1 and len(kept) < len(names):
        rest = sorted((name for name in names if name not in kept), key=lambda name: -gains.get(name, 0.0))
        tried = rest[:TRIED_AGAIN] if gains else rest
        left = {name: budget.used(make(precision([*kept, name])), batches, exact) for name in tried}
        gains |= {name: used - after for name, after in left.items()}
        best = min(tried, key=left.__getitem__)
        kept.append(best)
        used = left[best]
    return kept, gains
