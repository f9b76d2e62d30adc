"""Masks that are put together from the answers of windows: each pixel from one of them, or blended of all over it.

The blending is nnU-Net's (Isensee et al., Nature Methods 18, 203-211, 2021): of a voxel's logits, one of each window
over it, the mean is taken, weighted by a Gaussian about the window's centre whose standard deviation is an eighth of
the window's side; the largest mean is the class.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from models.errors import ImageError
from pipeline.deploy.image_windows import Span
from pipeline.deploy.mask_files import EIGHT_BITS, class_indices
from pipeline.devices.host import free_memory_bytes

SIGMA = 1 / 8  # of a window's side
GIB = 2**30
BYTES_OF_A_SUM, BYTES_OF_A_CHOICE = 4, 9  # fp32 of each class; int64 of the largest one, and its copy in 8 bits


class Seamed:
    """A mask of which each window gives pixels of its own.

    Args:
        sides: of the mask, in pixels.
    """

    def __init__(self, sides: Sequence[int]) -> None:
        self.sides = tuple(sides)
        self.mask = np.zeros(0, np.uint8)

    def add(self, place: Sequence[Span], answer: Tensor) -> None:
        """Take its pixels of a window's logits [1, classes, height, width], or classes; of a volume's with a depth."""
        part = class_indices(answer, len(self.sides) + 2)[0]
        if not self.mask.size:
            self.mask = np.zeros(self.sides, part.dtype)
        self.mask[tuple(span.place for span in place)] = part[tuple(span.kept for span in place)]

    def finished(self) -> np.ndarray:
        """The mask [*sides], uint8 or uint16, after the last window."""
        return self.mask


class Blended:
    """A volume's mask by the weighted mean of what all windows over a voxel answer.

    Windows come in the order of their first side. So the sums reach over the planes of one window alone: what lies
    before a window that begins further on is complete, and becomes classes at once. As the weights are positive, the
    largest sum is the largest mean, and nothing is divided.

    Args:
        sides: of the mask, in voxels.
        size: of a window.
        named: the volume, as an error calls it.
    """

    def __init__(self, sides: Sequence[int], size: Sequence[int], named: str) -> None:
        self.sides = tuple(sides)
        self.named = named
        self.covered = tuple(slice(0, min(part)) for part in zip(sides, size, strict=True))
        self.weights = gaussian(size)[self.covered]
        self.settled = 0  # planes that have their classes
        self.sums = torch.zeros(0)
        self.mask = np.zeros(0, np.uint8)

    def add(self, place: Sequence[Span], answer: Tensor) -> None:
        """Add a window's logits [1, classes, depth, height, width].

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
        kind = np.dtype(np.uint8 if classes <= EIGHT_BITS else np.uint16)
        planes = (self.weights.shape[0], *self.sides[1:])
        needed = math.prod(planes) * (BYTES_OF_A_SUM * classes + BYTES_OF_A_CHOICE)
        needed += math.prod(self.sides) * kind.itemsize
        if needed > (free := free_memory_bytes()):
            shown, of = "×".join(map(str, self.sides)), "×".join(map(str, planes))
            raise ImageError(
                f"{self.named}: {shown} in {classes} classes: the sums over {of} at a time and the mask take "
                f"{needed / GIB:.4g} GiB, and {free / GIB:.4g} GiB of memory are free"
            )
        self.sums = torch.zeros(classes, *planes)
        self.mask = np.zeros(self.sides, kind)

    def settle(self, end: int) -> None:
        """Give the planes before `end` their classes, and move the sums of those behind it to the front."""
        done, planes = end - self.settled, self.sums.shape[1]
        if not done:
            return
        self.mask[self.settled : end] = class_indices(self.sums[None, :, :done], len(self.sides) + 2)[0]
        for at in range(0, planes - done, done):  # piece by piece, so that no second copy is held
            piece = self.sums[:, at + done : at + 2 * done]
            self.sums[:, at : at + piece.shape[1]] = piece
        self.sums[:, planes - done :] = 0
        self.settled = end

    def finished(self) -> np.ndarray:
        """The mask [*sides], uint8 or uint16, after the last window."""
        self.settle(self.sides[0])
        return self.mask


def gaussian(size: Sequence[int]) -> Tensor:
    """The weights [*size], fp32, of a window's logits: 1 in its middle, which nnU-Net puts at half a side."""
    weights = torch.ones(())
    for side in size:
        off = (torch.arange(side, dtype=torch.float64) - side // 2) / (SIGMA * side)
        weights = weights[..., None] * torch.exp(-0.5 * off**2)
    return weights.float()
