"""Windows of one size that cover an image of any size, and the part of each answer that is kept."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

SIDES_OF_AN_IMAGE = 2  # volumes have three
STEP = 0.5  # share of a window's side, nnU-Net's


@dataclass(frozen=True)
class Cut:
    """The rule by which images, or volumes, become windows."""

    overlap: int = 0  # least overlap of an image's neighbouring windows, in pixels
    step: float = STEP  # largest distance of a volume's windows, as a share of their side, above 0 to 1
    whole: bool = False  # each is one window of its own size

    def along(self, sides: Sequence[int], size: Sequence[int]) -> list[list["Span"]]:
        """Return the windows along each side of an image [height, width]; of volumes with a depth before."""
        parts = zip(sides, size, strict=True)
        if len(sides) > SIDES_OF_AN_IMAGE:
            return [strides(length, window, self.step) for length, window in parts]
        return [spans(length, window, min(self.overlap, window - 1)) for length, window in parts]


@dataclass(frozen=True)
class Span:
    """A window along one side of an image, in pixels."""

    start: int  # of the window
    first: int  # the pixels of the image that it gives, `last` excluded
    last: int

    @property
    def kept(self) -> slice:
        """The kept pixels, in the window."""
        return slice(self.first - self.start, self.last - self.start)

    @property
    def place(self) -> slice:
        """The kept pixels, in the image."""
        return slice(self.first, self.last)


def spans(length: int, size: int, overlap: int) -> list[Span]:
    """Return the fewest windows along a side that overlap by at least `overlap`, evenly spread.

    The seam of two neighbours is in the middle of their overlap. A side of at most `size` has one window.
    """
    count = max(1, -((overlap - length) // (size - overlap)))
    starts = [(length - size) * index // (count - 1) for index in range(count)] if count > 1 else [0]
    return between_seams(starts, length, size)


def strides(length: int, size: int, step: float) -> list[Span]:
    """Return the windows along a side of a volume as nnU-Net puts them: evenly spread, the fewest within `step`.

    Isensee et al., nnU-Net, Nature Methods 18, 203-211, 2021. A side of at most `size` has one window.
    """
    further = max(0, length - size)
    count = 1 + math.ceil(further / max(1.0, step * size))
    return between_seams([round(further * index / max(1, count - 1)) for index in range(count)], length, size)


def between_seams(starts: Sequence[int], length: int, size: int) -> list[Span]:
    """Return windows with these starts; the seam of two neighbours is in the middle of their overlap."""
    seams = [(before + size + after + 1) // 2 for before, after in pairwise(starts)]
    return [Span(*part) for part in zip(starts, [0, *seams], [*seams, length], strict=True)]


def cut_out(image: np.ndarray, place: Sequence[Span], size: Sequence[int]) -> np.ndarray:
    """Return a window [*size, channels] of an image, which is continued in its mirror image."""
    part = image[tuple(slice(span.start, span.start + length) for span, length in zip(place, size, strict=True))]
    missing = [(0, wanted - found) for wanted, found in zip(size, part.shape, strict=False)]
    return np.pad(part, [*missing, (0, 0)], mode="symmetric") if any(more for _, more in missing) else part
