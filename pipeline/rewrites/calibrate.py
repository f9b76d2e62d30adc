"""Finds the scales of fp8 on the user's images, and the operations that have to stay in fp16 for the masks' sake."""

from collections.abc import Callable

from torch import Tensor

from pipeline.measure.accuracy import classes
from pipeline.rewrites.graph import Graph
from pipeline.rewrites.precision import READS_FP8, Precision, eighths, scales
from pipeline.rewrites.program import Program

Make = Callable[[Precision], Program]
TRIED_AGAIN = 4  # operations at each step: trying all of some forty would take minutes


def largest(program: Program, batches: list[Tensor]) -> dict[str, float]:
    """The largest magnitude of every value over the batches."""
    seen: dict[str, float] = {}
    for batch in batches:
        seen = {value: max(amount, seen.get(value, 0.0)) for value, amount in program.largest(batch).items()}
    return seen


def mixed(graph: Graph, seen: dict[str, float], keep: list[str], work: str) -> Precision:
    """fp8 wherever it goes, but for the operations in `keep`."""
    return Precision(work, eighths(graph, keep), scales(graph, seen))


def quantisable(graph: Graph) -> list[str]:
    """The operations that can read fp8, and whose input can be stored in it."""
    stored = eighths(graph, [])
    return [node.name for node in graph.nodes if node.op in READS_FP8 and node.inputs[0] in stored]


def flipped_share(program: Program, batches: list[Tensor], masks: list[Tensor]) -> float:
    """The share of pixels whose class isn't that of `masks`."""
    flips = [
        float((classes(program(batch)) != mask).float().mean()) for batch, mask in zip(batches, masks, strict=True)
    ]
    return sum(flips) / len(flips)


def keep_for(
    graph: Graph, make: Make, precision: Callable[[list[str]], Precision], batches: list[Tensor], budget: float
) -> tuple[list[str], dict[str, float]]:
    """The operations to keep in fp16 so that at most `budget` of the pixels change their class, and why those.

    One after the other is kept, each time the one that stops most pixels from flipping beside those kept already: an
    operation's gain depends on them, since it shares its input's type with its neighbours. All are tried at first;
    then, at each step, those few that promised most when they were tried last.

    Returns:
        The names kept, and for every operation the share of pixels that stopped, or would have stopped, flipping when
        it was last tried; none of either where all fp8 is within the budget.
    """
    names = quantisable(graph)
    exact = make(precision(names))
    masks = [classes(exact(batch)) for batch in batches]
    kept: list[str] = []
    gains: dict[str, float] = {}
    flips = flipped_share(make(precision(kept)), batches, masks)
    while flips > budget and len(kept) < len(names):
        rest = sorted((name for name in names if name not in kept), key=lambda name: -gains.get(name, 0.0))
        tried = rest[:TRIED_AGAIN] if gains else rest
        left = {name: flipped_share(make(precision([*kept, name])), batches, masks) for name in tried}
        gains |= {name: flips - after for name, after in left.items()}
        best = min(tried, key=left.__getitem__)
        kept.append(best)
        flips = left[best]
    return kept, gains
