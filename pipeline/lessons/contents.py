"""The lessons, in the order in which they are read: memory, arithmetic, access, then overhead and fusion."""

from pipeline.lessons.experiments import (
    batches,
    chain,
    contiguous,
    cuda_context,
    eight_bits,
    gelu,
    in_place,
    launches,
    many_tensors,
    optimizers,
    precisions,
    sizes,
    sparsity,
    start_up,
    strides,
    transfers,
)
from pipeline.lessons.lesson import Lesson

CONTENTS: tuple[Lesson, ...] = (
    cuda_context.LESSON,
    transfers.LESSON,
    precisions.LESSON,
    eight_bits.LESSON,
    sparsity.LESSON,
    sizes.LESSON,
    batches.LESSON,
    in_place.LESSON,
    strides.LESSON,
    contiguous.LESSON,
    chain.LESSON,
    gelu.LESSON,
    launches.LESSON,
    many_tensors.LESSON,
    optimizers.LESSON,
    start_up.LESSON,
)
