"""Reads image files as the values that they hold, by stated rules; what a rule doesn't cover is refused by name.

docs/inputs.md states the rules.
"""

import math
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np
import tifffile
from PIL import Image, ImageOps, UnidentifiedImageError

from pipeline.errors import ImageError
from pipeline.inputs.npy_files import mapped
from pipeline.inputs.png_files import check_rows
from pipeline.inputs.tiff_files import ONE_CHANNEL, check_stored, pillow_spoils, read_tiff
from pipeline.inputs.unreadable import UNREADABLE, unreadable

SUFFIXES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".npy"}
TIFF = {".tif", ".tiff"}
# Pillow's names of these formats: it looks at contents alone, and gives some others away, as PostScript to Ghostscript.
FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")
COLOURS = {"P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"}  # Pillow's modes, of 8 bits a channel
GREY = {"1", "L", "LA"}
SHOWN = (1, 3)  # channels of grey and of colour
KINDS = (np.uint8, np.uint16, np.float32)  # in which images are kept
SAID = 5  # files that a line names

Read = TypeVar("Read")


def each(files: Iterable[Path], read: Callable[[Path], Read]) -> list[Read]:
    """What `read` makes of every file.

    Raises:
        ImageError: `read` raised it for some. The line gives each reason once, that of most files first, with their
            names; it names the first five, and says how many there are.
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
        raise ImageError(_together(wrong))
    return done


def _together(wrong: dict[str, list[str]]) -> str:
    """Such as "a.png, b.png and 3 more: labels in colour; c.png: no such file"."""
    parts, left, more = [], SAID, 0
    for reason, names in sorted(wrong.items(), key=lambda part: -len(part[1])):
        shown = names[:left]
        if not shown:
            more += len(names)
            continue
        left -= len(shown)
        others = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
        parts.append(f"{', '.join(shown)}{others}: {reason}")
    return "; ".join([*parts, *([f"and {more} more"] if more else [])])


def read_image(path: Path, channels: int = 3) -> np.ndarray:
    """An image as [height, width, channels], in the type that its file has: uint8, uint16 or fp32.

    One channel becomes three that are equal, three that are equal become one; a palette's colours are taken,
    transparency is dropped, CMYK is converted, and the orientation in the file's EXIF applied.

    Raises:
        ImageError: it can't be read, has several pages, other channels, or values of another type.
    """
    image = with_channels(path, read_values(path, raw=channels not in SHOWN), channels)
    image = image.astype(np.uint8) * 255 if image.dtype == np.bool_ else image.astype(image.dtype.newbyteorder("="))
    if image.dtype.kind == "f":
        image = image.astype(np.float32)
        if not np.isfinite(image).all():
            raise ImageError(f"{path}: it holds NaN or infinite values")
    if image.dtype not in KINDS:
        raise ImageError(f"{path}: values of type {image.dtype}; uint8, uint16 and floating point are read")
    return image


def with_channels(path: Path, image: np.ndarray, channels: int) -> np.ndarray:
    """The image [height, width, any] as [height, width, channels]; errors as of `read_image`."""
    found = image.shape[2]
    if found == channels:
        return image
    if found == 1 and channels == 3:
        return np.repeat(image, 3, axis=2)
    if channels == 1 and found == 3 and (image == image[..., :1]).all():
        return image[..., :1]
    hint = "; colour is not turned into grey unasked" if (found, channels) == (3, 1) else ""
    if path.suffix.lower() in TIFF and found > channels in SHOWN:
        hint = f"; data.channels={found} takes them all, or save {'grey' if channels == 1 else 'RGB'} alone"
    if path.suffix.lower() == ".npy" and image.shape[0] == channels:
        hint = f"; an array {list(image.shape)} is read as [height, width, channels]"
    raise ImageError(f"{path}: {found} channels, data.channels={channels}{hint}")


def opened(path: Path) -> Image.Image:
    """The file as Pillow opens it, of the formats that are read alone; errors are `UNREADABLE` and Pillow's bomb."""
    return Image.open(path, formats=FORMATS)


def read_values(path: Path, raw: bool = False, indices: bool = False) -> np.ndarray:
    """A file's values [height, width, channels], of any type; indices of a palette as their colours.

    Args:
        path: the file.
        raw: whether a TIFF's channels are no colours, and none is transparency.
        indices: whether those of a palette are wanted where Pillow doesn't know its colours, of more than 8 bits.

    Raises:
        ImageError: it can't be read, or has several pages.
    """
    if path.suffix.lower() == ".npy":
        return _read_array(path)
    try:
        # Of what a header holds beside the image, and of a torn one, Pillow warns already as it opens the file.
        with warnings.catch_warnings(action="ignore"), opened(path) as image:
            check_file(path, image)
            if image.format == "TIFF" and (raw or pillow_spoils(image)):
                return read_tiff(path, raw, indices)
            return _planes(path, ImageOps.exif_transpose(image))
    except UnidentifiedImageError as error:
        if path.suffix.lower() in TIFF:  # of five channels, say
            return read_tiff(path, raw, indices)
        raise unreadable(path, error) from None
    except Image.DecompressionBombError as error:
        raise ImageError(f"{path}: {error}") from None
    except UNREADABLE as error:
        raise unreadable(path, error) from None


def _planes(path: Path, image: Image.Image) -> np.ndarray:
    """Pillow's image as [height, width, channels]."""
    if image.mode in GREY or image.mode in ONE_CHANNEL:
        values = np.array(image.getchannel(0) if image.mode == "LA" else image)
        return values[..., None]
    if image.mode not in COLOURS:
        raise ImageError(f"{path}: an image of mode {image.mode}; grey, RGB, RGBA, CMYK and palettes are read")
    return np.array(image.convert("RGB"))


def check_file(path: Path, image: Image.Image) -> None:
    """That a file holds one picture, all of it, in a depth that is read.

    Raises:
        ImageError: it doesn't.
    """
    _check_pages(path, image)
    check_depth(path, image)
    if image.format == "TIFF":
        check_stored(path)
    check_rows(path, image)


def check_depth(path: Path, image: Image.Image) -> None:
    """That a PNG of several channels has 8 bits of each: nothing here reads more.

    Raises:
        ImageError: it has more.
    """
    if image.format != "PNG" or image.mode in ONE_CHANNEL:
        return
    with path.open("rb") as file:
        depth = file.read(25)[24]  # IHDR: width, height, then bits (https://www.w3.org/TR/png-3/#11IHDR)
    if depth > 8:
        raise ImageError(
            f"{path}: a PNG of several channels of {depth} bits, which would lose half; save a TIFF or .npy"
        )


def _check_pages(path: Path, image: Image.Image) -> None:
    """That there is one picture in the file; a phone's JPEG may hold a preview besides."""
    pages = getattr(image, "n_frames", 1)
    if pages > 1 and image.format != "MPO":
        raise ImageError(f"{path}: {pages} pages or frames; save each as an image of its own")


def _read_array(path: Path) -> np.ndarray:
    """An .npy file, [height, width] or [height, width, channels]."""
    try:
        values = mapped(path)
    except UNREADABLE as error:
        raise unreadable(path, error) from None
    if values.ndim not in (2, 3) or not values.size:
        raise ImageError(
            f"{path}: an array of shape {list(values.shape)}; [height, width] or [height, width, channels]"
        )
    return np.array(values[..., None] if values.ndim == 2 else values)


def pixels(path: Path) -> int:
    """How many values a file's picture has, by its header; 0 where that can't be told."""
    try:
        if path.suffix.lower() == ".npy":
            return int(mapped(path).size)
        try:
            with opened(path) as image:
                return image.width * image.height * max(1, len(image.getbands()))
        except UnidentifiedImageError:  # of five channels, say
            with tifffile.TiffFile(path) as file:
                return int(math.prod(file.series[0].shape))
    except (*UNREADABLE, tifffile.TiffFileError, IndexError, Image.DecompressionBombError, MemoryError):
        return 0


def alike(images: list[np.ndarray], sources: list[str], scale: float | None) -> list[np.ndarray]:
    """The images in one type, so that a value means the same in all: 8 bits widened to 16, integers scaled to floats.

    Args:
        images: each [height, width, channels], uint8, uint16 or fp32.
        sources: where each comes from.
        scale: what the user divides values by; None for what their type holds.

    Raises:
        ImageError: floats outside of 0 to 1, or files of several types, where `scale` says what a value means.
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
            raise ImageError(f"{source}: floats from {low:.4g} to {high:.4g}; set data.scale, or save values in 0 to 1")
    if np.dtype(np.float32) in types and len(types) > 1:
        return [_as_float(image) for image in images]
    if len(types) > 1:
        return [image.astype(np.uint16) * 257 if image.dtype == np.uint8 else image for image in images]
    return images


def _as_float(image: np.ndarray) -> np.ndarray:
    """Integers as a share of what their type holds, fp32; floats as they are."""
    return image if image.dtype == np.float32 else image.astype(np.float32) / np.iinfo(image.dtype).max
