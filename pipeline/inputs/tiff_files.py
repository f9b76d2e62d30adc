"""Reads TIFFs that Pillow doesn't read, or would spoil, by tifffile."""

import logging
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tifffile
from PIL import Image

from pipeline.errors import ImageError
from pipeline.inputs.unreadable import UNREADABLE, unreadable

MOST_PIXELS = 178_956_970  # of one image: beyond it Pillow speaks of a bomb and raises
ONE_CHANNEL = {"I;16", "I;16B", "I;16L", "I", "F"}  # Pillow's modes
BITS_PER_SAMPLE, PHOTOMETRIC, ORIENTATION, EXTRA_SAMPLES, SAMPLE_FORMAT = 258, 262, 274, 338, 339  # tags
WHITE_IS_ZERO, UNSPECIFIED, SIGNED = 0, 0, 2  # values of PHOTOMETRIC, of EXTRA_SAMPLES and of SAMPLE_FORMAT
# By the value of ORIENTATION: where row 0 and column 0 lie as the picture is seen (TIFF 6.0), and what puts it upright.
UPRIGHT: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: np.fliplr,
    3: lambda values: np.rot90(values, 2),
    4: np.flipud,
    5: lambda values: values.swapaxes(0, 1),
    6: lambda values: np.rot90(values, -1),
    7: lambda values: np.rot90(values, 2).swapaxes(0, 1),
    8: np.rot90,
}
SEEN = {tifffile.PHOTOMETRIC.MINISWHITE, tifffile.PHOTOMETRIC.MINISBLACK, tifffile.PHOTOMETRIC.RGB}
CLASSES = {*SEEN, tifffile.PHOTOMETRIC.PALETTE, tifffile.PHOTOMETRIC.MASK}

logging.getLogger("tifffile").setLevel(logging.CRITICAL + 1)  # or it tells on stderr what the error tells


def pillow_spoils(image: Image.Image) -> bool:
    """Whether Pillow would keep 8 bits of several channels, drop one that is no transparency, or mistake 8 bits.

    That is to miss that 0 is white, or to take what is below 0 for large.
    """
    tags = image.tag_v2  # type: ignore[attr-defined]
    if UNSPECIFIED in tags.get(EXTRA_SAMPLES, ()) or SIGNED in tags.get(SAMPLE_FORMAT, ()):
        return True
    if image.mode in ONE_CHANNEL:
        return bool(tags.get(PHOTOMETRIC) == WHITE_IS_ZERO)
    return bool(max(tags.get(BITS_PER_SAMPLE, (8,))) > 8)


def check_stored(path: Path) -> None:
    """That a TIFF that Pillow opens holds one plane, all of it, in bits of which the largest is white.

    Pillow takes the first of several planes that lie behind one header, as ImageJ writes large stacks, fills in zeros
    for strips that aren't there, and gives 12 bits as if they were 16.

    Raises:
        ImageError: it doesn't.
    """
    try:
        with tifffile.TiffFile(path, is_ome=False, is_mmstack=False) as file:  # whose series span other files, too
            series, bits = file.series[0], file.pages.first.bitspersample
            stored, page = math.prod(series.shape), math.prod(series.keyframe.shape)
            check_strips(path, series)
    except (*UNREADABLE, tifffile.TiffFileError, IndexError) as error:
        raise unreadable(path, error) from None
    if stored > page:
        raise ImageError(f"{path}: {stored // page} planes behind one header; save each as an image of its own")
    if 8 < bits < 16:
        raise ImageError(
            f"{path}: values of {bits} bits; save them in 16 bits, and set data.scale={2**bits - 1}, or in 8"
        )


def check_strips(path: Path, series: tifffile.TiffPageSeries) -> None:
    """That a TIFF has as many strips or tiles as its header announces.

    Raises:
        ImageError: it has fewer; readers take them for zeros, one by one, however many.
    """
    if len(series.keyframe.dataoffsets) < math.prod(series.keyframe.chunked):
        raise ImageError(f"{path}: ends before its last value")


def read_tiff(path: Path, raw: bool, indices: bool) -> np.ndarray:
    """A TIFF by tifffile, [height, width, channels], of any type, upright as its header has it.

    Args:
        path: the file.
        raw: whether its channels are no colours; else only grey and RGB are taken.
        indices: whether those of a palette or of a mask are taken, too.

    Raises:
        ImageError: it can't be read, has several pages or more pixels than are read, or is of other colours.
    """
    try:
        with tifffile.TiffFile(path) as file:
            pages, axes = len(file.pages), file.series[0].axes
            check_pixels(path, file)
            shown = file.pages.first.photometric
            if not raw and shown not in (CLASSES if indices else SEEN):
                raise ImageError(f"{path}: a TIFF whose values mean {colours(shown)}; save it as grey or RGB")
            values = tiff_values(path, file)
            orientation = file.pages.first.tags.valueof(ORIENTATION, 1)
    except (*UNREADABLE, tifffile.TiffFileError, IndexError) as error:
        raise unreadable(path, error) from None
    if pages > 1 or values.ndim not in (2, 3):
        raise ImageError(f"{path}: {pages} pages of {values.ndim} dimensions; save each as an image of its own")
    if values.ndim == 3 and axes.startswith("S"):  # planes one after the other
        values = np.moveaxis(values, 0, -1)
    upright = np.asarray(UPRIGHT.get(orientation, np.asarray)(values))
    return upright[..., None] if upright.ndim == 2 else upright


def colours(photometric: int) -> str:
    """What a header says of a TIFF's colours, by its name in the standard where it has one."""
    return getattr(photometric, "name", f"PhotometricInterpretation {photometric}")


def check_pixels(path: Path, file: tifffile.TiffFile) -> None:
    """That a TIFF has no more pixels than Pillow would read of any image.

    Raises:
        ImageError: it has; a few bytes that were packed can announce any number.
    """
    page = file.pages.first
    if (found := page.imagewidth * page.imagelength) > MOST_PIXELS:
        raise ImageError(f"{path}: {found:,} pixels; at most {MOST_PIXELS:,} are read of one image")


def as_black_is_zero(path: Path, file: tifffile.TiffFile, values: np.ndarray) -> np.ndarray:
    """The values of a TIFF, turned round where its header says that 0 is white (PhotometricInterpretation 0).

    Raises:
        ImageError: they are of a type that has no largest value.
    """
    if file.pages.first.photometric != tifffile.PHOTOMETRIC.MINISWHITE:
        return values
    if values.dtype.kind != "u":
        raise ImageError(f"{path}: its header says that 0 is white, which {values.dtype} has no black for")
    return np.asarray(2**file.pages.first.bitspersample - 1 - values, dtype=values.dtype)


def tiff_values(path: Path, file: tifffile.TiffFile) -> np.ndarray:
    """The first series of an open TIFF, of any rank, 0 for black.

    Raises:
        ImageError: as `as_black_is_zero` and `check_strips`.
    """
    series = file.series[0]
    check_strips(path, series)
    return as_black_is_zero(path, file, np.asarray(series.asarray()))
