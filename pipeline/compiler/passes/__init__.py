"""The passes over a graph, in their order, each yielding the layers that it matched."""

from collections.abc import Callable, Iterable

from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.ops import KERNELS
from pipeline.compiler.passes import kernel_folding, tidying
from pipeline.compiler.passes.constant_folding import (
    add_parallel_convolutions,
    fold_batch_norm,
    fold_constants,
    join_linear_layers,
)
from pipeline.compiler.passes.norms import excite_where_summed, norms_in_nhwc, sum_where_made
from pipeline.compiler.passes.upsampling_composition import compose_upsampling, pointwise_before_upsampling
from pipeline.compiler.passes.volumes_as_images import volumes_as_images

Pass = Callable[[ExportedNet], Iterable[str]]

FOR_ANY_BACKEND: list[Pass] = [
    fold_constants,
    tidying.drop_empty_parts,
    tidying.drop_identities,
    tidying.fold_padding,
    fold_batch_norm,
    add_parallel_convolutions,
    fold_batch_norm,  # once more: of sums that have become convolutions
    tidying.multiply_patches,
    join_linear_layers,
    pointwise_before_upsampling,
    norms_in_nhwc,
]
FOR_THE_KERNELS: list[Pass] = [
    volumes_as_images,
    norms_in_nhwc,  # once more: of volumes that have become images
    tidying.read_before_unshuffling,
    tidying.centre_windows,
    compose_upsampling,
    kernel_folding.take_gated_conv1x1,
    *(kernel_folding.pass_for(op) for op in KERNELS if op.accepts and not op.writes_logits),
    kernel_folding.take_tokens,
    kernel_folding.fold_residual,
    kernel_folding.fold_activation,
    sum_where_made,
    excite_where_summed,
    kernel_folding.pool_where_it_is_made,
    kernel_folding.fold_head,
    kernel_folding.head_after_pointwise,
    kernel_folding.take_head,
]


def rewrite(net: ExportedNet, passes: list[Pass]) -> None:
    """Run passes over the graph, in order; `net.matched` says which layers each of them changed."""
    net.module.graph.eliminate_dead_code()
    for step in passes:
        if changed := [*step(net)]:
            net.module.graph.eliminate_dead_code()  # after each pass it would take seconds
        net.matched[step.__name__] = [*net.matched.get(step.__name__, []), *changed]
    net.module.graph.lint()
    net.module.recompile()
