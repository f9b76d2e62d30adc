"""The ends of a compiled network: images as files hold them, normalised first, and the class of every pixel, last.

Each is a step of its own beside the compiled network, whose kernels and logits stay the same.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pipeline.compiler.batch import Batch
from pipeline.compiler.errors import CompileError

BYTES, TABLE_AXES = 256, 2  # values of one; channels and these values
NO_CLASS = 255  # of a pixel whose logits aren't all finite; -1 of networks with more classes than a byte has values


class ByTable(nn.Module):
    """Normalisation by a table: the value for each value of a byte, so every device and compiler gives the same."""

    table: Tensor

    def __init__(self, table: Tensor, *, reverses: bool = False) -> None:
        """Take a table [channels, 256] in fp32; `reverses` gives the images' channels in the other order."""
        super().__init__()
        if table.dim() != TABLE_AXES or table.shape[1] != BYTES or table.dtype != torch.float32:
            raise CompileError(
                f"uint8_in: a table {list(table.shape)} in {table.dtype}; [channels, 256] in fp32 is taken"
            )
        self.reverses = reverses
        self.register_buffer("table", table)

    def forward(self, images: Tensor) -> Tensor:
        """Return a batch [batch, channels, height, width] in fp32 of images [batch, height, width, channels]."""
        planes = images.movedim(-1, 1).int()
        planes = planes.flip(1) if self.reverses else planes
        rows = torch.arange(len(self.table), dtype=torch.int32, device=images.device) * BYTES
        places = planes + rows.reshape(-1, *[1] * (images.dim() - 2))
        return nn.functional.embedding(places, self.table.reshape(-1, 1)).squeeze(-1).contiguous()


class Classes(nn.Module):
    """The class of every pixel; `NO_CLASS` tells of logits that are no numbers."""

    def forward(self, logits: Tensor) -> Tensor:
        """Return classes [batch, height, width] of logits [batch, classes, height, width]; one channel is cut at 0."""
        kind, no_class = (torch.uint8, NO_CLASS) if logits.shape[1] < BYTES else (torch.int32, -1)
        chosen = logits.argmax(1) if logits.shape[1] > 1 else logits[:, 0] > 0
        return chosen.to(kind).masked_fill(~logits.float().sum(1).isfinite(), no_class)


def has_class(classes: Tensor) -> Tensor:
    """Return of each pixel of `Classes` whether its logits are numbers."""
    return classes != (NO_CLASS if classes.dtype == torch.uint8 else -1)


class WithEnds(nn.Module):
    """A network between its ends, each of which may be missing."""

    def __init__(self, net: nn.Module, before: nn.Module | None, after: nn.Module | None) -> None:
        super().__init__()
        self.net, self.before, self.after = net, before, after
        self.training = False  # an exported network has no `eval`

    def forward(self, first: Tensor, *others: Tensor) -> Tensor:
        """Return the network's answer, or classes, of its inputs; the first may be images."""
        answer: Tensor = self.net(first if self.before is None else self.before(first), *others)
        return answer if self.after is None else self.after(answer)


@dataclass(frozen=True)
class Ends:
    """The ends that a network is compiled with."""

    before: nn.Module | None = None  # makes its first input of images [batch, height, width, channels] in uint8
    after: nn.Module | None = None  # makes classes of its logits

    @property
    def in_words(self) -> str:
        """Such as ", uint8 in, classes out"."""
        return ", uint8 in" * (self.before is not None) + ", classes out" * (self.after is not None)

    def inputs(self, given: Batch) -> Batch:
        """Return the network's inputs of a call's."""
        if self.before is None:
            return given
        with torch.no_grad():
            return Batch((self.before(given.first), *given.tensors[1:]), given.names)

    def whole(self, net: nn.Module) -> nn.Module:
        """Return a network with the ends; without any the network itself."""
        return WithEnds(net, self.before, self.after) if self.in_words else net
