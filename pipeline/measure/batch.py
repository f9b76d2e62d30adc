"""What a call of a net is given: its inputs by name, in the order in which its forward takes them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

Answer = TypeVar("Answer")
IMAGE = "image"  # the input of a net of one


@dataclass(frozen=True)
class Batch:
    """The inputs of one call, each [batch, ...]; a net is called with them in order: `net(*batch)`.

    Attributes:
        tensors: the inputs. The first is the one that answers are about: images, volumes, latents.
        names: of each, as the net's forward calls it.
    """

    tensors: tuple[Tensor, ...]
    names: tuple[str, ...] = (IMAGE,)

    def __post_init__(self) -> None:
        """Check that each input has a name and that all are of as many samples.

        Raises:
            ValueError: they aren't.
        """
        if len(self.tensors) != len(self.names):
            raise ValueError(f"{len(self.tensors)} inputs and {len(self.names)} names: {', '.join(self.names)}")
        if len({len(part) for part in self.tensors}) > 1:
            counts = ", ".join(f"{name} {len(part)}" for name, part in zip(self.names, self.tensors, strict=True))
            raise ValueError(f"the inputs are of different numbers of samples: {counts}")

    def __iter__(self) -> Iterator[Tensor]:
        """The inputs in order."""
        return iter(self.tensors)

    @property
    def first(self) -> Tensor:
        """The first input, [batch, ...]."""
        return self.tensors[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the first input."""
        return tuple(self.first.shape)

    @property
    def device(self) -> torch.device:
        """Where the inputs are."""
        return self.first.device

    @property
    def is_cuda(self) -> bool:
        """Whether they are on a GPU."""
        return self.first.is_cuda

    @property
    def size_bytes(self) -> int:
        """Of all inputs together."""
        return sum(part.numel() * part.element_size() for part in self.tensors)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """The inputs, each changed."""
        return Batch(tuple(map(change, self.tensors)), self.names)

    def samples(self, first: int, last: int) -> "Batch":
        """The samples from `first` up to `last`."""
        return self.mapped(lambda part: part[first:last])

    def clone(self) -> "Batch":
        """The same values in memory of their own."""
        return self.mapped(torch.clone)

    def copy_(self, other: "Batch") -> None:
        """Take over the values of another batch of the same shapes; from pinned memory without waiting for them."""
        for part, values in zip(self.tensors, other.tensors, strict=True):
            part.copy_(values, non_blocking=True)


def batched(inputs: Tensor | Batch) -> Batch:
    """The inputs of a call: a batch as it is, a tensor [batch, ...] as the one input of a net."""
    return inputs if isinstance(inputs, Batch) else Batch((inputs,))


def of_batches(run: Callable[..., Answer]) -> Callable[[Batch], Answer]:
    """A stage, which takes its inputs one by one, as a function of a batch."""

    def call(batch: Batch) -> Answer:
        return run(*batch.tensors)

    return call
