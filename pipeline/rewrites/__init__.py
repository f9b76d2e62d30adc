"""Rewrites a net's graph for the project's kernels: the passes, in their order, each reporting what it matched.

What no pass matches stays an ATen operation and runs as it is, so any net that torch can export still runs.
"""

from collections.abc import Callable

from pipeline.rewrites.convolution import fold_activation, fold_batch_norm, name_convolutions
from pipeline.rewrites.graph import Graph
from pipeline.rewrites.kernels import (
    fold_head,
    join_without_copy,
    pool_where_it_is_made,
    take_3x3,
    take_first,
    take_transposed,
    take_upsampling,
)

Pass = Callable[[Graph], list[str]]

PASSES: list[Pass] = [
    name_convolutions,
    fold_batch_norm,
    fold_activation,
    take_3x3,
    take_first,
    take_transposed,
    pool_where_it_is_made,
    fold_head,
    take_upsampling,
    join_without_copy,
]


def rewrite(graph: Graph) -> dict[str, list[str]]:
    """Run all passes over the graph, in order; for each the names of the operations that it changed."""
    return {step.__name__: step(graph) for step in PASSES}
