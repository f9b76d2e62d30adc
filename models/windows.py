"""Cuts images and their labels into windows of one size."""

from typing import NamedTuple

import numpy as np

from models.errors import ImageError
from models.stain import UNLABELLED

MOST_MIRRORED = 2  # times its side that an image is continued to


class Named(NamedTuple):
    """An image with its labels."""

    source: str
    image: np.ndarray  # [height, width, channels]
    label: np.ndarray | None  # [height, width], uint8, 255 where not labelled; None without labels


def cut(named: Named, size: int | None, whole: bool) -> list[Named]:
    """The image in windows of `size`; a smaller image is mirrored up to the size, to twice its own at most.

    Args:
        named: the image.
        size: height and width; None leaves it as it is.
        whole: whether each labelled pixel is to be judged, and once: the last windows of a side end at its edge, and
            what another window or the image itself holds already isn't labelled in them. Else windows lie side by
            side, and what is left at the right and lower edge belongs to none.

    Raises:
        ImageError: the labels are of another size than the image, or it is less than half as high or wide as a window.
    """
    source, image, label = named
    if label is not None and label.shape != image.shape[:2]:
        sizes = ["×".join(map(str, part.shape[:2])) for part in (label, image)]
        raise ImageError(f"{source}: its labels are {sizes[0]}, the image is {sizes[1]}")
    if size is None:
        return [named]
    if MOST_MIRRORED * min(image.shape[:2]) < size:
        shown = "×".join(map(str, image.shape[:2]))
        raise ImageError(f"{source}: {shown} pixels, data.size={size}: most would be mirrored; choose a smaller one")
    image = _mirrored(image, size)
    if label is not None:
        label = _unlabelled_up_to(label, size) if whole else _mirrored(label, size)
    tiles = []
    for top in _starts(image.shape[0], size, whole):
        for left in _starts(image.shape[1], size, whole):
            window = slice(top, top + size), slice(left, left + size)
            known = None if label is None else label[window].copy()
            if known is not None:
                known[: -top % size if top % size else 0] = UNLABELLED
                known[:, : -left % size if left % size else 0] = UNLABELLED
            tiles.append(Named(f"{source} at {top},{left}", image[window], known))
    return sorted(tiles, key=_unlabelled_share)


def _unlabelled_share(tile: Named) -> float:
    """The share of pixels without a label, 0 to 1."""
    return 1.0 if tile.label is None else float((tile.label == UNLABELLED).mean())


def _starts(length: int, size: int, whole: bool) -> list[int]:
    """Where windows begin along a side, in pixels."""
    starts = list(range(0, length - size + 1, size))
    return [*starts, length - size] if whole and length % size else starts


def _mirrored(image: np.ndarray, size: int) -> np.ndarray:
    """An image [h, w, c] or labels [h, w], continued in its mirror image where a side is shorter than `size`."""
    missing = [(0, max(0, size - length)) for length in image.shape[:2]]
    return np.pad(image, missing + [(0, 0)] * (image.ndim - 2), mode="symmetric")


def _unlabelled_up_to(label: np.ndarray, size: int) -> np.ndarray:
    """Labels [h, w], continued without labels where a side is shorter than `size`."""
    missing = [(0, max(0, size - length)) for length in label.shape]
    return np.pad(label, missing, constant_values=UNLABELLED)


def rolled(tile: Named, turn: int) -> Named:
    """The tile again, moved by 13 pixels a turn, so that no two batches are the same."""
    source, image, label = tile
    if not turn:
        return tile
    moved = None if label is None else np.roll(label, 13 * turn, axis=1)
    return Named(f"{source}, rolled by {13 * turn}", np.roll(image, 13 * turn, axis=1), moved)
