"""Images and volumes as arrays of stated shape and type; files that no rule covers are refused (docs/inputs.md)."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pipeline.errors import ImageError, few
from pipeline.inputs.formats import Meaning, format_in, formats_of, nodata_of, opened, reading, turned
from pipeline.inputs.input_contract import Axes

SHOWN = (1, 3)  # channels of grey and of colour
LARGEST_WHOLE = 2**24  # up to which fp32 has every whole number
SAID = 5  # number of files that a message names

Read = TypeVar("Read")


def each(files: Iterable[Any], read: Callable[[Any], Read]) -> list[Read]:
    """Return `read(file)` of every file, or sample of several.

    Raises:
        ImageError: `read` raised it for some files. The line gives each reason once, the most frequent first, names up
            to five files, and states how many more there are.
    """
    done: list[Read] = []
    wrong: dict[str, list[str]] = {}
    for file in files:
        try:
            done.append(read(file))
        except ImageError as error:
            named, _, reason = str(error).partition(": ")
            wrong.setdefault(reason, []).append(named)
    if wrong:
        raise ImageError(together(wrong))
    return done


def together(wrong: dict[str, list[str]]) -> str:
    """Return a line such as "a.png, b.png and 3 more: labels in colour; c.png: no such file"."""
    parts, left, more = [], SAID, 0
    for reason, names in sorted(wrong.items(), key=lambda part: -len(part[1])):
        shown = names[:left]
        if not shown:
            more += len(names)
            continue
        left -= len(shown)
        parts.append(f"{few(names, len(shown))}: {reason}")
    return "; ".join([*parts, *([f"and {more} more"] if more else [])])


def read_image(
    path: Path, channels: int = 3, fill: float | None = None, *, volumes: bool = False, axes: Axes = "zyx"
) -> np.ndarray:
    """Read an image as [height, width, channels]: uint8, uint16, or fp32 of other integers and of floats.

    Grey becomes three equal channels if `channels` is 3, and three equal channels become one if `channels` is 1. A
    palette becomes its colours, CMYK is converted, transparency is dropped, and the orientation in EXIF is applied.

    Args:
        path: the file.
        channels: of the network's input.
        fill: NaN, infinite values and those that a GeoTIFF calls nodata become this; with None, NaN and infinite values
            are refused.
        volumes: it is a volume [depth, height, width, channels], whose values become fp32 and whose channels stay.
        axes: order of NIfTI's.

    Raises:
        ImageError: it can't be read, has several pages, other channels, or values of another type.
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


def conversion_of(path: Path) -> str:
    """Return how the colours of an image that Pillow opens are changed, in a clause; an empty text if they aren't."""
    with suppress(Exception), opened(path) as image:  # of no image of Pillow's
        if image.mode == "CMYK":
            return "CMYK, converted to RGB without a colour profile"
        if image.has_transparency_data:
            return "transparency, which is dropped"
    return ""


def with_channels(path: Path, image: np.ndarray, channels: int, *, volumes: bool) -> np.ndarray:
    """Return an image [height, width, any], or a volume with a depth before, with this number of channels."""
    count = image.shape[-1]
    if count == channels:
        return image
    if count == 1 and channels == 3 and not volumes:
        return np.repeat(image, 3, axis=2)
    if channels == 1 and count == 3 and not volumes and (image == image[..., :1]).all():
        return image[..., :1]
    hint = "; colour is not turned into grey unasked" if (count, channels) == (3, 1) else ""
    if path.suffix.lower().startswith(".tif") and count > channels in SHOWN:
        hint = f"; data.channels={count} takes them all, or save {'grey' if channels == 1 else 'RGB'} alone"
    if image.shape[0] == channels:
        hint = f"; channels come first in {list(image.shape)}, and are read last"
    raise ImageError(f"{path}: {count} channels, data.channels={channels}{hint}")


def read_values(path: Path, meaning: Meaning, *, volumes: bool = False, axes: Axes = "zyx") -> np.ndarray:
    """Read a file's values [height, width, channels], of volumes with a depth before, of any type."""
    with reading(path, "a volume" if volumes else "an image"):
        values = turned(format_in(formats_of(volumes), path).read(path, meaning), path, axes)
    sides = ["depth", "height", "width"][not volumes :]
    if values.ndim not in (len(sides), len(sides) + 1) or not values.size:
        raise ImageError(
            f"{path}: an array of shape {list(values.shape)}; [{', '.join(sides)}] or [{', '.join(sides)}, channels]"
        )
    return values[..., None] if values.ndim == len(sides) else values


def alike(images: list[np.ndarray], sources: list[str], scale: float | None) -> list[np.ndarray]:
    """Return the images in one type, so that a value means the same in all.

    8 bits are widened to 16; beside floats, integers become a share of their type's largest value.

    Args:
        images: each [height, width, channels], uint8, uint16 or fp32.
        sources: the origin of each, for messages.
        scale: the user's divisor of values; None: the largest value of their type.
    """
    types = {image.dtype for image in images}
    if scale is not None:
        if len(types) > 1:
            names = ", ".join(sorted(str(kind) for kind in types))
            raise ImageError(
                f"data.scale={scale:g}: the images are of several types ({names}), one scale can't be for all"
            )
        return images
    for image, source in zip(images, sources, strict=True):
        if image.dtype == np.float32 and not (image.min() >= 0 and image.max() <= 1):
            low, high = float(image.min()), float(image.max())
            raise ImageError(f"{source}: values from {low:.6g} to {high:.6g}; set data.scale, or save floats in 0 to 1")
    if np.dtype(np.float32) in types and len(types) > 1:
        shares = {image.dtype: 1 if image.dtype == np.float32 else np.iinfo(image.dtype).max for image in images}
        return [image.astype(np.float32, copy=False) / shares[image.dtype] for image in images]
    if len(types) > 1:
        return [image.astype(np.uint16) * 257 if image.dtype == np.uint8 else image for image in images]
    return images
