"""Images, volumes and labels as arrays of stated type; what no rule covers is refused (docs/inputs.md)."""

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pipeline.errors import ImageError, few
from pipeline.inputs.formats import Meaning, formats_of, is_lossy, nodata_of, opened, reading, turned
from pipeline.inputs.input_contract import UNLABELLED, Axes, LabelRules

SHOWN = (1, 3)  # channels of grey and of colour
LARGEST_WHOLE = 2**24  # up to which fp32 has every whole number
SAID = 5  # number of files, or values, that a message names
MOST_COLOURS = 16  # of a file that shows classes by colours; a photograph has more
LARGEST_LABEL = np.iinfo(np.int64).max

Read = TypeVar("Read")


def each(files: Iterable[Any], read: Callable[[Any], Read]) -> list[Read]:
    """Return `read(file)` of every file, or sample of several, in threads; raise one ImageError for all that fail."""

    def tried(file: Any) -> Read | ImageError:
        try:
            return read(file)
        except ImageError as error:
            return error

    # `reading` changes the filters of warnings, which all threads share; this block restores them.
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        answers = list(threads.map(tried, files))
    wrong: dict[str, list[str]] = {}
    for answer in answers:
        if isinstance(answer, ImageError):
            named, _, reason = str(answer).partition(": ")
            wrong.setdefault(reason, []).append(named)
    if wrong:
        raise ImageError(together(wrong))
    return [answer for answer in answers if not isinstance(answer, ImageError)]


def together(wrong: dict[str, list[str]]) -> str:
    """Return a line such as "a.png, b.png and 3 more: labels in colour; c.png: no such file"."""
    parts, left, more = [], SAID, 0
    for reason, names in sorted(wrong.items(), key=lambda part: -len(part[1])):
        if left > 0:
            parts.append(f"{few(names, left)}: {reason}")
        else:
            more += len(names)
        left -= len(names)
    return "; ".join([*parts, *([f"and {more} more"] if more else [])])


def read_image(
    path: Path, channels: int = 3, fill: float | None = None, *, volumes: bool = False, axes: Axes = "zyx"
) -> np.ndarray:
    """Read an image as [height, width, channels]: uint8, uint16, or fp32 of other integers and of floats.

    Grey becomes three equal channels if `channels` is 3, and three equal channels become one if `channels` is 1. A
    palette becomes its colours, CMYK is converted, transparency is dropped, and the orientation in EXIF is applied.

    NaN, infinite values and those that a GeoTIFF calls nodata become `fill`; without it, the first two are refused. A
    volume [depth, height, width, channels] becomes fp32 and keeps its channels; `axes` is the order of NIfTI's.
    """
    meaning: Meaning = "colours" if channels in SHOWN else "raw"
    image = with_channels(path, read_values(path, meaning, volumes=volumes, axes=axes), channels, volumes=volumes)
    if image.dtype.kind not in "buif":
        raise ImageError(f"{path}: values of type {image.dtype}; integers and floating point are read")
    if volumes:
        with np.errstate(over="ignore"):  # too large values become infinite, which is refused
            return finite(path, image.astype(np.float32), fill)
    image = image.astype(np.uint8) * 255 if image.dtype == np.bool_ else image
    image = image.astype(image.dtype.newbyteorder("="), copy=False)
    if fill is not None and (nodata := nodata_of(path)) is not None:
        limits = None if image.dtype.kind == "f" else np.iinfo(image.dtype)
        if limits and not limits.min <= int(fill) == fill <= limits.max:
            raise ImageError(f"{path}: data.fill={fill:g} is no {image.dtype}; give a whole number up to {limits.max}")
        image = np.where(image == nodata, np.array(fill, image.dtype), image)
    if image.dtype.kind == "f":
        return finite(path, image.astype(np.float32), fill)
    if image.dtype in (np.uint8, np.uint16):
        return image
    if max(-int(image.min()), int(image.max())) > LARGEST_WHOLE:
        raise ImageError(f"{path}: {image.dtype} beyond {LARGEST_WHOLE:,}, of which fp32 has not each; save floats")
    return image.astype(np.float32)


def finite(path: Path, values: np.ndarray, fill: float | None) -> np.ndarray:
    """Return the values, fp32, with `fill` instead of NaN and infinite ones."""
    right = np.isfinite(values)
    if right.all():
        return values
    if fill is None:
        raise ImageError(f"{path}: it holds NaN or infinite values; data.fill=0 reads them as 0")
    return np.where(right, values, np.float32(fill))


def with_channels(path: Path, image: np.ndarray, channels: int, *, volumes: bool) -> np.ndarray:
    """Return an image [height, width, any], or a volume with a depth before, with this number of channels."""
    count = image.shape[-1]
    if count == channels:
        return image
    if count == 1 and channels == 3 and not volumes:
        return np.repeat(image, 3, axis=2)
    if channels == 1 and count == 3 and not volumes and (image == image[..., :1]).all():
        return image[..., :1]
    takes = f"; data.channels={count} takes them"
    hint = "; colour is not turned into grey unasked" if (count, channels) == (3, 1) else takes
    if path.suffix.lower().startswith(".tif") and count > channels in SHOWN:
        hint = f"{takes} all, or save {'grey' if channels == 1 else 'RGB'} alone"
    if image.shape[0] == channels:
        hint = f"; channels come first in {list(image.shape)}, and are read last"
    raise ImageError(f"{path}: {count} channels, data.channels={channels}{hint}")


def read_values(path: Path, meaning: Meaning, *, volumes: bool = False, axes: Axes = "zyx") -> np.ndarray:
    """Read a file's values [height, width, channels], of volumes with a depth before, of any type."""
    with reading(path, "a volume" if volumes else "an image"):
        values = turned(formats_of(volumes).of(path).read(path, meaning), path, axes)
    sides = ["depth", "height", "width"][not volumes :]
    if values.ndim not in (len(sides), len(sides) + 1) or not values.size:
        raise ImageError(
            f"{path}: an array of shape {list(values.shape)}; [{', '.join(sides)}] or [{', '.join(sides)}, channels]"
        )
    return values[..., None] if values.ndim == len(sides) else values


def alike(images: list[np.ndarray], sources: list[str], scale: float | None) -> list[np.ndarray]:
    """Return the images in one type; beside floats, integers become a share of their type's largest value."""
    types = {image.dtype for image in images}
    if scale is not None:
        if len(types) > 1:
            names = ", ".join(sorted(str(kind) for kind in types))
            raise ImageError(f"data.scale={scale:g}: images of several types ({names}), one scale can't be for all")
        return images
    floats = [each for each in zip(images, sources, strict=True) if each[0].dtype == np.float32]
    if beyond := [(image, source) for image, source in floats if not (image.min() >= 0 and image.max() <= 1)]:
        low, high = min(image.min() for image, _ in beyond), max(image.max() for image, _ in beyond)
        named = few([source for _, source in beyond], SAID)
        raise ImageError(f"{named}: values from {low:.6g} to {high:.6g}; set data.scale, or save floats in 0 to 1")
    if np.dtype(np.float32) in types and len(types) > 1:
        shares = {image.dtype: 1 if image.dtype == np.float32 else np.iinfo(image.dtype).max for image in images}
        return [image.astype(np.float32, copy=False) / shares[image.dtype] for image in images]
    if len(types) > 1:
        return [image.astype(np.uint16) * 257 if image.dtype == np.uint8 else image for image in images]
    return images


# Labels


def read_label(path: Path, rules: LabelRules, *, volumes: bool = False, axes: Axes = "zyx") -> np.ndarray:
    """Read the values [height, width] of a label file, int64; `as_classes` turns them into classes.

    Those of a volume have a depth before, and NIfTI's are in the order of `axes`. Indices of a palette and grey of few
    bits are kept. With `rules.colors`, a colour becomes its index in that list.
    """
    check_exact(path)
    values = read_values(path, "colours" if rules.colors else "classes", volumes=volumes, axes=axes)
    if rules.colors:
        return _of_colors(path, values, rules.colors)
    if values.shape[-1] not in (1, 3, 4):
        raise ImageError(f"{path}: labels of {values.shape[-1]} channels; one is read")
    if (values != values[..., :1]).any():
        colors = np.unique(values.reshape(-1, values.shape[-1])[:, :3], axis=0).astype(int).tolist()
        said = ", too many for classes; a lossless file has one for each"
        if len(colors) <= MOST_COLOURS:
            listed = str(colors).replace(" ", "")
            said = f"; data.colors={listed}, in the order of the classes, says which each is"
        raise ImageError(f"{path}: labels of {len(colors)} colours{said}")
    values = values[..., 0]
    if values.dtype.kind not in "buif":
        raise ImageError(f"{path}: labels of type {values.dtype}; integers are read")
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.floor(values))).all():
        raise ImageError(f"{path}: labels are no integers")
    if values.size and values.max() > LARGEST_LABEL:
        raise ImageError(f"{path}: labels {values.max():.6g}; classes from 0 to 254 are judged")
    return values.astype(np.int64)


def check_exact(path: Path) -> None:
    """Raise ImageError if labels vary in transparency, which is dropped, or if their compression is lossy."""
    varies = False
    with suppress(Exception), opened(path) as image:  # a file that can't be opened is refused by its reader
        varies = "A" in image.getbands() and len({*image.getchannel("A").getextrema()}) > 1
    if varies:
        raise ImageError(f"{path}: its transparency varies, and labels are read of the colours; save them without it")
    if is_lossy(path):
        raise ImageError(
            f"{path}: labels under lossy compression, which changes values; save PNGs, of black and white as mask > 127"
        )


def _of_colors(path: Path, values: np.ndarray, colors: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Return the index [height, width] of each pixel's colour in `colors`."""
    shown = np.repeat(values, 3, axis=-1) if values.shape[-1] == 1 else values[..., :3]
    classes = np.full(shown.shape[:-1], -1, np.int64)
    for index, color in enumerate(colors):
        classes[(shown == np.array(color)).all(axis=-1)] = index
    if (classes < 0).any():
        others = np.unique(shown[classes < 0], axis=0)[:SAID].tolist()
        raise ImageError(f"{path}: colours that data.colors doesn't list: {', '.join(map(str, others))}")
    return classes


def as_classes(labels: Sequence[np.ndarray], files: Sequence[Path], rules: LabelRules) -> list[np.ndarray]:
    """Return class indices [height, width], uint8, 255 where not labelled, by a rule for all files together."""
    values: set[int] = set().union(*each(labels, lambda label: np.unique(label).tolist()))
    positive, ignore = rules.positive, rules.ignore
    if positive is None and not rules.colors and values == {0, 255}:
        positive, ignore = 255, None
    if positive is not None and positive not in values:
        there = few([str(value) for value in sorted(values)], SAID)
        raise ImageError(f"data.positive={positive}: no label has this value; they have {there}")
    if not values - {ignore}:
        raise ImageError(f"{files[0].parent}: every pixel of labels is {ignore}, which data.ignore calls unlabelled")
    return [_classes(label, file, positive, ignore) for label, file in zip(labels, files, strict=True)]


def _classes(label: np.ndarray, file: Path, positive: int | None, ignore: int | None) -> np.ndarray:
    """Return the class indices of one file."""
    known = np.ones(label.shape, bool) if ignore is None else label != ignore
    classes = label if positive is None else (label == positive).astype(np.int64)
    beyond = known & ((classes < 0) | (classes >= UNLABELLED))
    if beyond.any():
        others = few(list(map(str, np.unique(label[beyond]))), SAID)
        remedy = "data.positive and data.ignore say what other values mean"
        raise ImageError(f"{file}: labels {others}; classes from 0 to 254 are judged; {remedy}")
    return np.where(known, classes, UNLABELLED).astype(np.uint8)
