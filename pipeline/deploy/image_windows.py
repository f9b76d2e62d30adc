"""Windows of one size that cover an image of any size, and which part of each one's answer is kept."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


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
    return np.pad(part, [*missing, (0, 0)], mode="symmetric")


def step(sides: Sequence[int], most: int = 64) -> int:
    """The largest power of two, at most `most`, that divides all sides: what a net that took them can need."""
    return math.gcd(most, *sides)


def padded(length: int, multiple: int) -> int:
    """The length, in pixels, rounded up to a multiple."""
    return -(-length // multiple) * multiple
