"""The inputs in rotation, whose contents move on by one buffer between samples.

A stage that remembers its answers by the address of their input would otherwise be timed at looking them up, and would
still be right afterwards.
"""

import torch
from torch import Tensor


class Rotation:
    """Buffers of one shape, called in turn, and the pictures that lie in them for now.

    Attributes:
        shift: so many buffers further back than at first lies each picture.
    """

    def __init__(self, buffers: list[Tensor]) -> None:
        self._buffers = buffers
        self._spare = torch.empty_like(buffers[0])
        self._next = 0
        self.shift = 0

    def next(self) -> Tensor:
        """The buffer whose turn it is, [batch, channels, height, width]."""
        self._next += 1
        return self._buffers[(self._next - 1) % len(self._buffers)]

    def move_on(self) -> None:
        """Every buffer takes over the next one's picture, the last one the first's; outside all timing."""
        first, *others = self._buffers
        self._spare.copy_(first)
        for buffer, following in zip(self._buffers, [*others, self._spare], strict=True):
            buffer.copy_(following)
        self.shift = (self.shift + 1) % len(self._buffers)

    def holding(self, index: int) -> Tensor:
        """The buffer in which the picture lies that was in the `index`-th at first."""
        return self._buffers[(index - self.shift) % len(self._buffers)]
