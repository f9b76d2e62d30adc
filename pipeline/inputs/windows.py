"""Windows of one size, cut from images or volumes and their labels, and what a picture shows of them."""

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import ImageError
from pipeline.inputs.input_contract import UNLABELLED

MOST_MIRRORED = 2  # times its side, to which an image is mirrored at most


class Named(NamedTuple):
    """An image with its labels; a volume has a depth axis before the height."""

    source: str
    image: np.ndarray  # [height, width, channels]
    label: np.ndarray | None  # [height, width], uint8, 255 where not labelled; None without labels


def cut(named: Named, size: int | Sequence[int] | None, whole: bool) -> list[Named]:
    """Cut an image into windows of `size`; a smaller image is continued in its mirror image, up to twice its own size.

    `size` is that of all sides, or of each axis; without one, the image is one window. With `whole`, each labelled
    pixel is judged once, in windows that may overlap; else the rest at the right and lower edge is dropped.
    """
    source, image, label = named
    if not size:
        return [named]
    lengths = [size] * (image.ndim - 1) if isinstance(size, int) else list(size)
    sides, wanted = image.shape[-3:-1], lengths[-2:]  # a volume may be thin
    if any(MOST_MIRRORED * side < length for side, length in zip(sides, wanted, strict=True)):
        pixels = "×".join(map(str, sides))
        asked = lengths[0] if len(set(lengths)) == 1 else lengths
        raise ImageError(f"{source}: {pixels} pixels, data.size={asked}: most would be mirrored; choose a smaller one")
    image = _padded(image, lengths, mode="symmetric")
    if label is not None:
        by = {"constant_values": UNLABELLED} if whole else {"mode": "symmetric"}
        label = _padded(label, lengths, **by)
    tiles, starts = [], []
    for side, length in zip(image.shape, lengths, strict=False):
        places = list(range(0, side - length + 1, length))
        starts.append([*places, side - length] if whole and side % length else places)
    for corner in product(*starts):
        window = tuple(slice(at, at + length) for at, length in zip(corner, lengths, strict=True))
        known = None if label is None else label[window].copy()
        if known is not None:
            for axis, (at, length) in enumerate(zip(corner, lengths, strict=True)):
                np.moveaxis(known, axis, 0)[: -at % length] = UNLABELLED
        tiles.append(Named(f"{source} at {','.join(map(str, corner))}", image[window], known))
    return sorted(tiles, key=lambda tile: 1.0 if tile.label is None else (tile.label == UNLABELLED).mean())


def _padded(values: np.ndarray, sizes: Sequence[int], **how: Any) -> np.ndarray:
    """Return an image [h, w, c] or labels [h, w], padded as `np.pad` says where a side is shorter than its size."""
    missing = [(0, max(0, size - length)) for size, length in zip(sizes, values.shape, strict=False)]
    return np.pad(values, missing + [(0, 0)] * (values.ndim - len(sizes)), **how)


def rolled(tile: Named, turn: int, labelled: bool) -> Named:
    """Return the tile rolled by 13 pixels a turn, so that no two batches are equal, with its labels if `labelled`."""
    source, image, label = tile
    if not turn:
        return tile
    moved = np.roll(label, 13 * turn, axis=1) if labelled and label is not None else None
    return Named(f"{source}, rolled by {13 * turn}", np.roll(image, 13 * turn, axis=1), moved)


def viewable(image: np.ndarray) -> np.ndarray:
    """Return an image [height, width, channels] for display: [height, width, 3], uint8; of a volume its middle plane.

    Unless there are 3 channels, the first is shown in grey. Values of more than 8 bits are scaled to their range.
    """
    image = middle_plane(image, axes=3)
    planes = image if image.shape[2] == 3 else np.repeat(image[..., :1], 3, axis=2)
    if planes.dtype == np.uint8:
        return planes
    values = planes.astype(np.float64)
    low, high = values.min(), values.max()
    shown: np.ndarray = (255 * (values - low) / max(high - low, np.finfo(np.float64).tiny)).round().astype(np.uint8)
    return shown


def middle_plane(values: np.ndarray, axes: int) -> np.ndarray:
    """Return the middle plane of a volume's depth if `values` has more than `axes` axes, else `values`."""
    return values[len(values) // 2] if values.ndim > axes else values
