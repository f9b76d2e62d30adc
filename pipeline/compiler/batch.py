"""The inputs of one call of a network by name, and how tensors and weights lie: NHWC of images, NDHWC of volumes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

Answer = TypeVar("Answer")
IMAGE = "image"  # the input of a net of one


@dataclass(frozen=True)
class Batch:
    """The inputs of one call, each [batch, ...]; a network is called with them in order: `net(*batch)`."""

    tensors: tuple[Tensor, ...]  # the first is the one that answers are about: images, volumes, latents
    names: tuple[str, ...] = (IMAGE,)  # as the network's forward calls them

    def __post_init__(self) -> None:
        if len(self.tensors) != len(self.names):
            raise ValueError(f"{len(self.tensors)} inputs and {len(self.names)} names: {', '.join(self.names)}")
        if len({len(part) for part in self.tensors}) > 1:
            counts = ", ".join(f"{name} {len(part)}" for name, part in zip(self.names, self.tensors, strict=True))
            raise ValueError(f"the inputs are of different numbers of samples: {counts}")

    @classmethod
    def numbered(cls, tensors: Iterable[Tensor]) -> "Batch":
        """Return inputs without names of their own."""
        given = tuple(tensors)
        return cls(given, tuple(f"input {number}" for number in range(len(given))))

    def __iter__(self) -> Iterator[Tensor]:
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
        """True if the inputs are on a GPU."""
        return self.first.is_cuda

    @property
    def size_bytes(self) -> int:
        """Of all inputs together."""
        return sum(part.nbytes for part in self.tensors)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the inputs, each changed."""
        return Batch(tuple(map(change, self.tensors)), self.names)

    def samples(self, first: int, last: int) -> "Batch":
        """Return the samples from `first` up to `last`."""
        return self.mapped(lambda part: part[first:last])

    def clone(self) -> "Batch":
        """Return the same values in memory of their own."""
        return self.mapped(torch.clone)

    def copy_(self, other: "Batch") -> None:
        """Take over the values of another batch of the same shapes; from pinned memory without waiting for them."""
        for part, values in zip(self.tensors, other.tensors, strict=True):
            part.copy_(values, non_blocking=True)


def batched(inputs: Tensor | Batch) -> Batch:
    """Return a call's inputs as a Batch; a tensor [batch, ...] becomes a network's only input."""
    return inputs if isinstance(inputs, Batch) else Batch((inputs,))


def of_batches(run: Callable[..., Answer]) -> Callable[[Batch], Answer]:
    """Return a stage, which takes its inputs one by one, as a function of a batch."""
    return lambda batch: run(*batch.tensors)


Order = Literal["NHWC", "NCHW"]
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of axes
IN_WORDS: dict[Order, str] = {"NHWC": "channels_last", "NCHW": "NCHW, as the network's own code needs"}


def laid_out(part: Tensor, layout: Order = "NHWC") -> Tensor:
    """Return images [batch, channels, height, width] in NHWC and volumes in NDHWC; others, and for NCHW all, as is."""
    if layout == "NCHW" or part.dim() not in CHANNELS_LAST:
        return part
    return part.contiguous(memory_format=CHANNELS_LAST[part.dim()])


def order_of(part: Tensor) -> torch.memory_format | None:
    """Return the memory format in which a tensor lies; None where its steps are those of none."""
    known = (torch.contiguous_format, CHANNELS_LAST.get(part.dim(), torch.contiguous_format))
    return next((order for order in known if part.is_contiguous(memory_format=order)), None)


def in_dtype(part: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an input of any shape in a precision; whole numbers, and one number a sample such as a time step, stay."""
    return part.to(dtype) if part.is_floating_point() and part.dim() > 1 else part


def net_laid_out(model: nn.Module, layout: Order = "NHWC") -> nn.Module:
    """Lay out the network's own weights in NHWC, for volumes in NDHWC; leave them for NCHW; return the network."""
    for part in model.parameters():
        part.data = laid_out(part.data, layout)
    return model
