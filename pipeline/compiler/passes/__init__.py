"""The passes over a graph, in their order, each reporting what it matched."""

from collections.abc import Callable

from pipeline.compiler.graph import Graph
from pipeline.compiler.ops import KERNELS
from pipeline.compiler.passes.convolutions import fold_activation, fold_batch_norm, name_convolutions
from pipeline.compiler.passes.kernel_folding import fold_head, join_without_copy, pool_where_it_is_made
from pipeline.compiler.passes.kernel_matching import pass_for

Pass = Callable[[Graph], list[str]]

PASSES: list[Pass] = [
    name_convolutions,
    fold_batch_norm,
    fold_activation,
    *(pass_for(op) for op in KERNELS),
    pool_where_it_is_made,
    fold_head,
    join_without_copy,
]


def rewrite(graph: Graph) -> dict[str, list[str]]:
    """Run all passes over the graph, in order; for each the names of the operations that it changed."""
    return {step.__name__: step(graph) for step in PASSES}
