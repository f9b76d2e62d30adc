"""The inputs in rotation, moved on between samples so no answer can be kept by address, and checksums of tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pipeline.compiler.batch import Batch, batched

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes of an element to a type of its bits


def held_by(model: nn.Module) -> dict[str, Tensor]:
    """Return a network's weights and buffers by name, leaving out what `get_extra_state` adds to a state dict."""
    return {name: part for name, part in model.state_dict().items() if isinstance(part, Tensor)}


def fingerprint(values: Tensor) -> tuple[Tensor, ...]:
    """Return sums of the values' bits along each of the last two dimensions of a tensor of any shape and type."""
    # A value that changes by one bit changes them, and so do two values that change places in a row or a column.
    bits = torch.view_as_real(values.detach()) if values.is_complex() else values.detach()
    bits = bits.view(torch.uint8) if bits.dtype is torch.bool else bits.view(BITS[bits.element_size()])
    if bits.dim() < 2:
        return (bits.clone(),)
    return bits.sum(-1, dtype=torch.int64), bits.sum(-2, dtype=torch.int64)


def is_same(before: tuple[Tensor, ...], values: Tensor) -> bool:
    """Return whether a tensor of any shape still has the fingerprint `before`."""
    now = fingerprint(values)
    return len(before) == len(now) and all(torch.equal(one, other) for one, other in zip(before, now, strict=True))


class Rotation:
    """Buffers of one shape, called in turn, and the pictures, or whatever inputs, that lie in them for now."""

    def __init__(self, buffers: Sequence[Batch] | Sequence[Tensor]) -> None:
        self.buffers = [batched(buffer) for buffer in buffers]
        self._first = [[fingerprint(part) for part in buffer] for buffer in self.buffers]
        self._next = 0
        self.spare = self.buffers[0].mapped(torch.empty_like)
        self.shift = 0

    def __len__(self) -> int:
        """Return the number of buffers."""
        return len(self.buffers)

    def next(self) -> Batch:
        """Return the next buffer in turn."""
        self._next += 1
        return self.buffers[(self._next - 1) % len(self.buffers)]

    def move_on(self) -> None:
        """Every buffer takes over the next one's picture, the last one the first's; outside all timing."""
        first, *others = self.buffers
        self.spare.copy_(first)
        for buffer, following in zip(self.buffers, [*others, self.spare], strict=True):
            buffer.copy_(following)
        self.shift = (self.shift + 1) % len(self.buffers)

    def holding(self, index: int) -> Batch:
        """Return the buffer that now holds the picture of the `index`-th buffer at the start."""
        return self.buffers[(index - self.shift) % len(self.buffers)]

    def changed(self) -> list[int]:
        """Return the indices at the start of the pictures whose values have changed."""
        return [
            index
            for index, first in enumerate(self._first)
            if not all(is_same(before, part) for before, part in zip(first, self.holding(index), strict=True))
        ]
