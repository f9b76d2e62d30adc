"""The program's own pictures, read and cut once: each worker of a ladder, and many a test, does so anew."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest

from pipeline.inputs import datasets, windows
from pipeline.inputs.windows import Named

Cut = Callable[..., list[Named]]


def install(patch: pytest.MonkeyPatch) -> None:
    """Have `datasets` remember its pictures, and their windows of each size; nobody can write into them."""
    for name, read in datasets.DEMOS.items():
        patch.setitem(datasets.DEMOS, name, cache(locked(read)))
    patch.setattr(datasets, "cut", once(windows.cut))


def locked(read: Callable[[], list[Named]]) -> Callable[[], list[Named]]:
    """`read` with arrays that can't be changed."""

    def pictures() -> list[Named]:
        found = read()
        for array in (part for named in found for part in (named.image, named.label) if part is not None):
            array.setflags(write=False)
        return found

    return pictures


def once(cut: Cut) -> Cut:
    """`cut` that answers for a picture of the program's own, which nobody can write into, with what it gave before."""
    known: dict[tuple[int, object, bool], tuple[np.ndarray, list[Named]]] = {}

    def pieces(named: Named, size: int | Sequence[int] | None, whole: bool) -> list[Named]:
        if named.image.flags.writeable:
            return cut(named, size, whole=whole)
        key = id(named.image), size if isinstance(size, int | None) else tuple(size), whole
        if key not in known:
            known[key] = named.image, cut(named, size, whole=whole)
        return known[key][1]

    return pieces
