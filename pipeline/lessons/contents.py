"""The lessons, in the order in which they are read: memory, arithmetic, access, then overhead and fusion."""

from pipeline.lessons.experiments import (
    batches,
    chain,
    contiguous,
    cuda_context,
    gelu,
    in_place,
    launches,
    many_tensors,
    precisions,
    sizes,
    strides,
    transfers,
)
from pipeline.lessons.lesson import Lesson

CONTENTS: tuple[Lesson, ...] = (
    cuda_context.LESSON,
    transfers.LESSON,
    precisions.LESSON,
    sizes.LESSON,
    batches.LESSON,
    in_place.LESSON,
    strides.LESSON,
    contiguous.LESSON,
    chain.LESSON,
    gelu.LESSON,
    launches.LESSON,
    many_tensors.LESSON,
)
