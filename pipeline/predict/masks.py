"""Masks that are put together from the answers of windows: each pixel from one of them, or blended of all over it.

The blending is nnU-Net's (Isensee et al., Nature Methods 18, 203-211, 2021): of a voxel's logits, one of each window
over it, the mean is taken, weighted by a Gaussian about the window's centre whose standard deviation is an eighth of
the window's side; the largest mean is the class. Where the net gives values, the means are the answer.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pipeline.devices.host import free_memory_bytes
from pipeline.errors import ImageError
from pipeline.predict.windows import Span

SIGMA = 1 / 8  # of a window's side
EIGHT_BITS = 256  # classes
GIB = 2**30
BYTES_OF_A_SUM, BYTES_OF_A_CHOICE = 4, 12  # fp32 of each class; of the largest one fp32, too, and int64


def class_indices(logits: Tensor, axes: int) -> np.ndarray:
    """The class of each pixel [batch, height, width] of logits [batch, classes, height, width]; of volumes likewise.

    uint8 of up to 256 classes, else uint16; of a single channel class 1 is what lies above 0.

    Args:
        logits: of so many axes. Classes already, as a net may give them, [batch, height, width], uint8 or int32, have
            one less and stay what they are.
        axes: of logits.
    """
    if logits.ndim < axes:
        return logits.cpu().numpy().astype(np.uint8 if logits.dtype == torch.uint8 else np.uint16)
    if logits.shape[1] == 1:
        return (logits[:, 0] > 0).to(torch.uint8).cpu().numpy()
    # Two cores of an EPYC take 29 ns a voxel of 3 classes, 113 by argmax, with the same choice of equals (torch 2.12).
    chosen = logits.max(1).indices if logits.is_cpu else logits.argmax(1)
    if logits.shape[1] <= EIGHT_BITS:
        return chosen.to(torch.uint8).cpu().numpy()
    return chosen.to(torch.int32).cpu().numpy().astype(np.uint16)


def decided(answer: Tensor, axes: int, as_values: bool) -> np.ndarray:
    """What is written of one answer [1, channels, depth, height, width]: its classes, or its values, fp32.

    Args:
        answer: logits, values or classes, of images without a depth.
        axes: of logits.
        as_values: whether no classes are made; several values of a voxel come last.
    """
    found: np.ndarray
    if as_values:
        values = answer[0].to("cpu", torch.float32).movedim(0, -1)
        found = (values if values.shape[-1] > 1 else values[..., 0]).numpy()
    else:
        found = class_indices(answer, axes)[0]
    return found


class Seamed:
    """A mask of which each window gives pixels of its own.

    Args:
        sides: of the mask, in pixels.
        as_values: whether the net's values are wanted, not classes.
    """

    def __init__(self, sides: Sequence[int], as_values: bool) -> None:
        self.sides = tuple(sides)
        self.as_values = as_values
        self.mask = np.zeros(0, np.uint8)

    def add(self, place: Sequence[Span], answer: Tensor) -> None:
        """Take its pixels of a window's logits [1, classes, height, width], or classes; of a volume's with a depth."""
        part = decided(answer, len(self.sides) + 2, self.as_values)
        if not self.mask.size:
            self.mask = np.zeros((*self.sides, *part.shape[len(self.sides) :]), part.dtype)
        self.mask[tuple(span.place for span in place)] = part[tuple(span.kept for span in place)]

    def finished(self) -> np.ndarray:
        """The mask [height, width], with a depth before of a volume, after the last window."""
        return self.mask


class Blended:
    """A volume's mask by the weighted mean of what all windows over a voxel answer.

    Windows come in the order of their first side. So the sums reach over the planes of one window alone: what lies
    before a window that begins further on is complete, and is decided at once.

    Args:
        sides: of the mask, in voxels.
        size: of a window.
        along: the windows along each side.
        named: the volume, as an error calls it.
        as_values: whether the means themselves are wanted, not classes.
    """

    def __init__(
        self, sides: Sequence[int], size: Sequence[int], along: Sequence[Sequence[Span]], named: str, as_values: bool
    ) -> None:
        self.sides = tuple(sides)
        self.named = named
        self.as_values = as_values
        self.covered = tuple(slice(0, min(part)) for part in zip(sides, size, strict=True))
        self.weights = gaussian(size)[self.covered]
        self.totals = [total_weights(*part) for part in zip(along, size, sides, strict=True)]
        self.settled = 0  # planes that are decided
        self.sums = torch.zeros(0)
        self.mask = np.zeros(0, np.uint8)

    def add(self, place: Sequence[Span], answer: Tensor) -> None:
        """Add a window's logits, or values, [1, classes, depth, height, width].

        Raises:
            ImageError: the sums don't fit into memory.
        """
        if not self.sums.numel():
            self.take_memory(answer.shape[1])
        first, *others = place
        self.settle(first.start)
        part = answer[0].to("cpu", torch.float32)[:, *self.covered]
        here = [slice(span.start, span.start + length) for span, length in zip(others, part.shape[2:], strict=True)]
        self.sums[:, :, *here].addcmul_(part, self.weights)

    def take_memory(self, classes: int) -> None:
        """The sums [classes, planes of a window, height, width], and the mask; errors as of `add`."""
        kind = np.dtype(np.float32 if self.as_values else np.uint8 if classes <= EIGHT_BITS else np.uint16)
        shape = (*self.sides, classes) if self.as_values and classes > 1 else self.sides
        planes = (self.weights.shape[0], *self.sides[1:])
        needed = math.prod(planes) * (BYTES_OF_A_SUM * classes + (0 if self.as_values else BYTES_OF_A_CHOICE))
        needed += math.prod(shape) * kind.itemsize
        if needed > (free := free_memory_bytes()):
            shown, of = "×".join(map(str, self.sides)), "×".join(map(str, planes))
            raise ImageError(
                f"{self.named}: {shown} in {classes} {'channels' if self.as_values else 'classes'}: the sums over {of} "
                f"at a time and the answer take {needed / GIB:.4g} GiB, and {free / GIB:.4g} GiB of memory are free"
            )
        self.sums = torch.zeros(classes, *planes)
        self.mask = np.zeros(shape, kind)

    def settle(self, end: int) -> None:
        """Decide the planes before `end`, and move the sums of those behind it to the front."""
        done, planes = end - self.settled, self.sums.shape[1]
        if not done:
            return
        depth, height, width = self.totals
        means = self.sums[:, :done].div_(depth[self.settled : end, None, None]).div_(height[:, None]).div_(width)
        self.mask[self.settled : end] = decided(means[None], len(self.sides) + 2, self.as_values)
        for at in range(0, planes - done, done):  # piece by piece, so that no second copy is held
            piece = self.sums[:, at + done : at + 2 * done]
            self.sums[:, at : at + piece.shape[1]] = piece
        self.sums[:, planes - done :] = 0
        self.settled = end

    def finished(self) -> np.ndarray:
        """The mask [depth, height, width], or the values, several of a voxel last, after the last window.

        The sums are given back: other volumes of the same call need theirs.
        """
        self.settle(self.sides[0])
        self.sums = torch.zeros(0)
        return self.mask


def gaussian(size: Sequence[int]) -> Tensor:
    """The weights [depth, height, width], fp32, of a window's logits: the product of those along its sides."""
    weights = torch.ones((), dtype=torch.float64)
    for side in size:
        weights = weights[..., None] * weights_along(side)
    return weights.float()


def weights_along(side: int) -> Tensor:
    """The weights [side], fp64, along a window's side: 1 in the middle, which nnU-Net puts at half of it."""
    off = (torch.arange(side, dtype=torch.float64) - side // 2) / (SIGMA * side)
    return torch.exp(-0.5 * off**2)


def total_weights(windows: Sequence[Span], size: int, length: int) -> Tensor:
    """The sum [length], fp32, of the weights of all windows along a side; of a volume it is their product."""
    total, weights = torch.zeros(length, dtype=torch.float64), weights_along(size)[:length]
    for span in windows:
        total[span.start : span.start + len(weights)] += weights
    return total.float()
