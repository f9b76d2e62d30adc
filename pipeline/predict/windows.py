"""Windows of one size that cover an image of any size, and which part of each one's answer is kept."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

SIDES_OF_AN_IMAGE = 2  # a volume has three
STEP = 0.5  # of a window's side: nnU-Net's


@dataclass(frozen=True)
class Cut:
    """How images, or volumes, become windows.

    Attributes:
        overlap: of an image's neighbouring windows at least, in pixels.
        step: from a volume's window to the next one at most, as a share of the window's side, above 0, at most 1.
        whole: whether each goes in one window of its own size.
    """

    overlap: int = 0
    step: float = STEP
    whole: bool = False

    def along(self, sides: Sequence[int], size: Sequence[int]) -> list[list["Span"]]:
        """The windows of this size along each side of an image [height, width]; of a volume with a depth before."""
        parts = zip(sides, size, strict=True)
        if len(sides) > SIDES_OF_AN_IMAGE:
            return [strides(length, window, self.step) for length, window in parts]
        return [spans(length, window, min(self.overlap, window - 1)) for length, window in parts]


@dataclass(frozen=True)
class Span:
    """A window along one side of an image, in pixels.

    Attributes:
        start: where the window begins.
        first, last: the pixels of the image that are taken from it, `last` excluded.
    """

    start: int
    first: int
    last: int

    @property
    def kept(self) -> slice:
        """What is taken from the window, in its own pixels."""
        return slice(self.first - self.start, self.last - self.start)

    @property
    def place(self) -> slice:
        """Where that goes in the image."""
        return slice(self.first, self.last)


def spans(length: int, size: int, overlap: int) -> list[Span]:
    """The windows along a side: as few as overlap by at least so much, evenly spread, each pixel taken once.

    Of two neighbours each pixel of the overlap is taken from the one whose border is further away, so that the middle
    of the overlap is the seam. A side of at most `size` has one window.

    Args:
        length: of the side, in pixels.
        size: of a window.
        overlap: from 0 to less than `size`.
    """
    count = max(1, -((overlap - length) // (size - overlap)))
    starts = [(length - size) * index // (count - 1) for index in range(count)] if count > 1 else [0]
    return between_seams(starts, length, size)


def strides(length: int, size: int, step: float) -> list[Span]:
    """The windows along a side of a volume, where nnU-Net puts them: evenly spread, as few as lie within a step.

    Isensee et al., nnU-Net, Nature Methods 18, 203-211, 2021. A side of at most `size` has one window.

    Args:
        length: of the side, in voxels.
        size: of a window.
        step: from a window to the next one at most, as a share of `size`, above 0; a voxel at least.
    """
    further = max(0, length - size)
    count = 1 + math.ceil(further / max(1.0, step * size))
    return between_seams([round(further * index / max(1, count - 1)) for index in range(count)], length, size)


def between_seams(starts: Sequence[int], length: int, size: int) -> list[Span]:
    """Windows of one size that begin there; the seam of two neighbours is in the middle of their overlap."""
    seams = [(before + size + after + 1) // 2 for before, after in pairwise(starts)]
    return [Span(*part) for part in zip(starts, [0, *seams], [*seams, length], strict=True)]


def cut_out(image: np.ndarray, place: Sequence[Span], size: Sequence[int]) -> np.ndarray:
    """A window [*size, channels] of an image [height, width, channels], which goes on in its mirror image.

    Args:
        image: the image, or a volume, which has a depth before the height.
        place: where the window begins, along each side.
        size: its sides.
    """
    part = image[tuple(slice(span.start, span.start + length) for span, length in zip(place, size, strict=True))]
    missing = [(0, wanted - found) for wanted, found in zip(size, part.shape, strict=False)]
    return np.pad(part, [*missing, (0, 0)], mode="symmetric") if any(more for _, more in missing) else part


def step(sides: Sequence[int], most: int = 64) -> int:
    """The largest power of two, at most `most`, that divides all sides: what a net that took them can need."""
    return math.gcd(most, *sides)


def padded(length: int, multiple: int) -> int:
    """The length, in pixels, rounded up to a multiple."""
    return -(-length // multiple) * multiple
