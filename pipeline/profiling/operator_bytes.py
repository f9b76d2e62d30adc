"""How many bytes one call moves, counted at torch's dispatcher."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ONLY_WRITES = {"copy_", "fill_", "zero_"}  # they don't read what they overwrite
WRITES_NOTHING = {"empty", "empty_strided", "empty_like", "new_empty"}


class Traffic(TorchDispatchMode):
    """Within, adds up the bytes that every operator reads and writes; a view moves none.

    What a cache keeps near is counted as if it came from memory, so this is what fusion can save, not what a counter
    in the hardware would show.
    """

    seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, and count it; one that is made of others is taken apart first."""
        kwargs = kwargs or {}
        with self:
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        result = func(*args, **kwargs)
        self.seen += moved(func, (args, kwargs), result)
        return result


def moved(func: Any, arguments: Any, result: Any) -> int:
    """Bytes that one operator reads and writes."""
    name = func._schema.name.removeprefix("aten::")
    read = {id(part): part for part in tree_leaves(arguments) if isinstance(part, Tensor)}
    written = [part for part in tree_leaves(result) if isinstance(part, Tensor)]
    if name in WRITES_NOTHING or (not func._schema.is_mutable and _all_views(written, list(read.values()))):
        return 0
    if name in ONLY_WRITES:
        read = {key: part for key, part in read.items() if all(part is not other for other in written)}
    return sum(size(part) for part in [*read.values(), *written])


def _all_views(written: list[Tensor], read: list[Tensor]) -> bool:
    places = {part.untyped_storage().data_ptr() for part in read}
    return all(part.untyped_storage().data_ptr() in places for part in written)


def size(part: Tensor) -> int:
    """Bytes that a tensor's elements take."""
    return int(part.numel()) * int(part.element_size())


def counted(run: Callable[[Tensor], Tensor], batch: Tensor) -> int:
    """Bytes that torch's dispatcher sees one call move; 0 where it sees nothing."""
    traffic = Traffic()  # type: ignore[no-untyped-call]
    with torch.inference_mode(), traffic:
        run(batch)
    return traffic.seen
