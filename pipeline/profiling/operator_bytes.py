"""How many bytes one call moves, counted at torch's dispatcher."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from pipeline.profiling.dispatch import Dispatched, Operator

Input = TypeVar("Input")
ONLY_WRITES = {"copy_", "fill_", "zero_"}  # they don't read what they overwrite
WRITES_NOTHING = {"empty", "empty_strided", "empty_like", "new_empty"}


def counted(run: Callable[[Input], object], batch: Input) -> int:
    """Bytes that every operator of one call reads and writes, summed; 0 where torch's dispatcher sees none.

    A view moves nothing. What a cache keeps near is counted as if it came from memory, so this is what fusion can save,
    not what a counter in the hardware would show.

    Args:
        run: the stage.
        batch: what `run` takes.
    """
    total = 0

    def see(operator: Operator) -> None:
        nonlocal total
        total += moved(operator)

    with torch.inference_mode(), Dispatched(see):
        run(batch)
    return total


def moved(operator: Operator) -> int:
    """Bytes that one operator reads and writes."""
    read, written = operator.inputs, operator.outputs
    if operator.name in WRITES_NOTHING:
        return 0
    if not operator.function._schema.is_mutable and _all_views(written, read):
        return 0
    if operator.name in ONLY_WRITES:
        read = [part for part in read if all(part is not other for other in written)]
    return sum(size(part) for part in [*read, *written])


def _all_views(written: list[Tensor], read: list[Tensor]) -> bool:
    places = {part.untyped_storage().data_ptr() for part in read}
    return all(part.untyped_storage().data_ptr() in places for part in written)


def size(part: Tensor) -> int:
    """Bytes that the elements of a tensor of any shape take."""
    return int(part.numel()) * int(part.element_size())
