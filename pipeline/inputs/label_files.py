"""Label files as class indices; values that no rule covers are refused with their file (docs/inputs.md)."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from pipeline.errors import ImageError
from pipeline.inputs.formats import is_lossy, opened
from pipeline.inputs.image_files import read_values
from pipeline.inputs.input_contract import Axes, LabelRules
from pipeline.inputs.stain import UNLABELLED

SHOWN_VALUES = 5
MOST_COLOURS = 16  # of a file that shows classes by colours; a photograph has more
LARGEST = np.iinfo(np.int64).max
IN_COLOUR = (3, 4)  # channels


def read_label(path: Path, rules: LabelRules, *, volumes: bool = False, axes: Axes = "zyx") -> np.ndarray:
    """Read the values [height, width] of a label file, int64; `as_classes` turns them into classes.

    Those of a volume have a depth before, and NIfTI's are in the order of `axes`.

    Indices of a palette and grey of few bits are kept. With `rules.colors`, a colour becomes its index in that list.

    Raises:
        ImageError: it can't be read, is lossy, or has channels that differ, colours that aren't listed, or varying
            transparency.
    """
    check_exact(path)
    values = read_values(path, "colours" if rules.colors else "classes", volumes=volumes, axes=axes)
    if rules.colors:
        return _of_colors(path, values, rules.colors)
    if values.shape[-1] not in (1, *IN_COLOUR):
        raise ImageError(f"{path}: labels of {values.shape[-1]} channels; one is read")
    if (values != values[..., :1]).any():
        raise ImageError(f"{path}: {_in_colour(values)}")
    values = values[..., 0]
    if values.dtype.kind not in "buif":
        raise ImageError(f"{path}: labels of type {values.dtype}; integers are read")
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.floor(values))).all():
        raise ImageError(f"{path}: labels are no integers")
    if values.size and values.max() > LARGEST:
        raise ImageError(f"{path}: labels {values.max():.6g}; classes from 0 to 254 are judged")
    return values.astype(np.int64)


def check_exact(path: Path) -> None:
    """Raise ImageError if labels vary in transparency, which is dropped, or if their compression is lossy."""
    lossy = varies = False
    with suppress(Exception):  # a file that can't be opened is refused by its reader
        lossy = is_lossy(path)
    with suppress(Exception), opened(path) as image:
        if "A" in image.getbands():
            least, most = image.getchannel("A").getextrema()
            varies = least != most
    if varies:
        raise ImageError(f"{path}: its transparency varies, and labels are read of the colours; save them without it")
    if lossy:
        raise ImageError(
            f"{path}: labels under lossy compression, which changes values; save PNGs, of black and white as mask > 127"
        )


def _in_colour(values: np.ndarray) -> str:
    """Return the message for coloured labels [height, width, channels], with the option that lists their colours."""
    colors = np.unique(values.reshape(-1, values.shape[-1])[:, :3], axis=0).astype(int).tolist()
    if len(colors) > MOST_COLOURS:
        return f"labels of {len(colors)} colours, too many for classes; a lossless file has one for each"
    listed = str(colors).replace(" ", "")
    return f"labels of {len(colors)} colours; data.colors={listed}, in the order of the classes, says which each is"


def _of_colors(path: Path, values: np.ndarray, colors: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Return the index [height, width] of each pixel's colour in `colors`."""
    shown = np.repeat(values, 3, axis=-1) if values.shape[-1] == 1 else values[..., :3]
    classes = np.full(shown.shape[:-1], -1, np.int64)
    for index, color in enumerate(colors):
        classes[(shown == np.array(color)).all(axis=-1)] = index
    if (classes < 0).any():
        others = np.unique(shown[classes < 0], axis=0)[:SHOWN_VALUES].tolist()
        raise ImageError(f"{path}: colours that data.colors doesn't list: {', '.join(map(str, others))}")
    return classes


def as_classes(labels: Sequence[np.ndarray], files: Sequence[Path], rules: LabelRules) -> list[np.ndarray]:
    """Return class indices [height, width], uint8, 255 where not labelled, by a rule for all files together.

    If no file has another value than 0 and 255, 255 is class 1: masks in black and white.
    """
    values = set().union(*(np.unique(label).tolist() for label in labels))
    ignore = rules.ignore
    positive = rules.positive
    if positive is None and not rules.colors and values == {0, 255}:
        positive, ignore = 255, None
    if positive is not None and positive not in values:
        raise ImageError(f"data.positive={positive}: no label has this value; they have {_listed(values)}")
    if not values - {ignore}:
        raise ImageError(
            f"{files[0].parent}: every pixel of the labels is {ignore}, which data.ignore says is not labelled"
        )
    return [_classes(label, file, positive, ignore) for label, file in zip(labels, files, strict=True)]


def _classes(label: np.ndarray, file: Path, positive: int | None, ignore: int | None) -> np.ndarray:
    """Return the class indices of one file."""
    known = np.ones(label.shape, bool) if ignore is None else label != ignore
    classes = label if positive is None else (label == positive).astype(np.int64)
    beyond = known & ((classes < 0) | (classes >= UNLABELLED))
    if beyond.any():
        raise ImageError(
            f"{file}: labels {_listed(set(np.unique(label[beyond]).tolist()))}; classes from 0 to 254 are judged; "
            "data.positive and data.ignore say what other values mean"
        )
    return np.where(known, classes, UNLABELLED).astype(np.uint8)


def _listed(values: set[int]) -> str:
    """Return the smallest values as text, with … if there are more."""
    first = ", ".join(map(str, sorted(values)[:SHOWN_VALUES]))
    return f"{first}, …" if len(values) > SHOWN_VALUES else first
