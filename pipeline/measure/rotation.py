"""The inputs in rotation, whose contents move on by one buffer between samples.

A stage that remembers its answers by the address of their input would otherwise be timed at looking them up, and would
still be right afterwards.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pipeline.compiler.batch import Batch, batched
from pipeline.measure.fingerprint import fingerprint, is_same


class Rotation:
    """Buffers of one shape, called in turn, and the pictures, or whatever inputs, that lie in them for now.

    Attributes:
        shift: so many buffers further back than at first lies each picture.
        spare: a buffer of the same shape that is in no turn.
    """

    def __init__(self, buffers: Sequence[Batch] | Sequence[Tensor]) -> None:
        self._buffers = [batched(buffer) for buffer in buffers]
        self._first = [[fingerprint(part) for part in buffer] for buffer in self._buffers]
        self._next = 0
        self.spare = self._buffers[0].mapped(torch.empty_like)
        self.shift = 0

    def __len__(self) -> int:
        """How many buffers there are."""
        return len(self._buffers)

    def next(self) -> Batch:
        """The buffer whose turn it is."""
        self._next += 1
        return self._buffers[(self._next - 1) % len(self._buffers)]

    def move_on(self) -> None:
        """Every buffer takes over the next one's picture, the last one the first's; outside all timing."""
        first, *others = self._buffers
        self.spare.copy_(first)
        for buffer, following in zip(self._buffers, [*others, self.spare], strict=True):
            buffer.copy_(following)
        self.shift = (self.shift + 1) % len(self._buffers)

    def holding(self, index: int) -> Batch:
        """The buffer in which the picture lies that was in the `index`-th at first."""
        return self._buffers[(index - self.shift) % len(self._buffers)]

    def changed(self) -> list[int]:
        """The pictures, by where they were at first, whose values are others than at first."""
        return [
            index
            for index, first in enumerate(self._first)
            if not all(is_same(before, part) for before, part in zip(first, self.holding(index), strict=True))
        ]
