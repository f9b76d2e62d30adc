"""The inputs in rotation, whose contents move on by one buffer between samples.

A stage that remembers its answers by the address of their input would otherwise be timed at looking them up, and would
still be right afterwards.
"""

import torch
from torch import Tensor

from pipeline.measure.fingerprint import fingerprint, is_same


class Rotation:
    """Buffers of one shape, called in turn, and the pictures that lie in them for now.

    Attributes:
        shift: so many buffers further back than at first lies each picture.
        spare: a buffer of the same shape that is in no turn.
    """

    def __init__(self, buffers: list[Tensor]) -> None:
        self._buffers = list(buffers)
        self._first = [fingerprint(buffer) for buffer in buffers]
        self._next = 0
        self.spare = torch.empty_like(buffers[0])
        self.shift = 0

    def __len__(self) -> int:
        """How many buffers there are."""
        return len(self._buffers)

    def next(self) -> Tensor:
        """The buffer whose turn it is, [batch, channels, height, width]."""
        self._next += 1
        return self._buffers[(self._next - 1) % len(self._buffers)]

    def end_on(self, index: int, calls: int) -> None:
        """Set the turns so that the last of so many calls takes the picture that was in the `index`-th at first."""
        self._next = (index - self.shift - calls + 1) % len(self._buffers)

    def move_on(self) -> None:
        """Every buffer takes over the next one's picture, the last one the first's; outside all timing."""
        first, *others = self._buffers
        self.spare.copy_(first)
        for buffer, following in zip(self._buffers, [*others, self.spare], strict=True):
            buffer.copy_(following)
        self.shift = (self.shift + 1) % len(self._buffers)

    def holding(self, index: int) -> Tensor:
        """The buffer in which the picture lies that was in the `index`-th at first."""
        return self._buffers[(index - self.shift) % len(self._buffers)]

    def picture_in(self, buffer: Tensor) -> int:
        """Where the picture was at first that lies now in a buffer [batch, channels, height, width]."""
        place = next(place for place, one in enumerate(self._buffers) if one is buffer)
        return (place + self.shift) % len(self._buffers)

    def changed(self) -> list[int]:
        """The pictures, by where they were at first, whose values are others than at first."""
        return [index for index, first in enumerate(self._first) if not is_same(first, self.holding(index))]

    def roll(self, rows: int) -> None:
        """Every picture moves down by so many rows, from none up to its height, the lowest to the top."""
        for buffer in self._buffers:
            self.spare[..., :rows, :].copy_(buffer[..., buffer.shape[-2] - rows :, :])
            self.spare[..., rows:, :].copy_(buffer[..., : buffer.shape[-2] - rows, :])
            buffer.copy_(self.spare)
