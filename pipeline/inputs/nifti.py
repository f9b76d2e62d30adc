"""Reads NIfTI-1 and NIfTI-2 in one file, packed or not, by their published headers (https://nifti.nimh.nih.gov).

The values come as [z, y, x], as SimpleITK gives them, with further ones of a voxel last; the affine isn't applied: axes
stay as they are stored. `pipeline.predict.volume_masks` writes class indices with the header of such a file.
"""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

HEADERS = {348: "1", 540: "2"}  # the header's length, which is also its first figure, and the version
MOST_AXES = 7
MOST_BEHIND = 2**20  # bytes of a packed file that are read behind its values: its checksum comes after them
MAGIC = {"1": (344, b"n+1\0"), "2": (4, b"n+2\0")}
DATATYPES = {
    2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4", 1024: "i8", 1280: "u8",
}  # fmt: skip


class NiftiError(Exception):
    """What is wrong with a file, in a clause."""


@dataclass(frozen=True)
class Header:
    """Of a file: axes as they are stored, x first; where the values begin; what they mean: slope · value + shift."""

    shape: tuple[int, ...]
    dtype: np.dtype
    begin: int
    slope: float
    shift: float


def nifti_voxels(path: Path) -> int:
    """How many values a file has, by its header.

    Raises:
        NiftiError: it isn't one.
    """
    with opened(path) as file:
        return math.prod(read_header(file).shape)


def nifti_values(path: Path) -> np.ndarray:
    """The values [z, y, x], or with several of a voxel last, scaled as the header says.

    Raises:
        NiftiError: it isn't one, or ends too early.
    """
    try:
        header, content = _content(path)
    except EOFError:
        raise NiftiError("its gzip has no end: the file is cut off") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise NiftiError(f"no gzip that can be unpacked ({error})") from None
    stored = np.frombuffer(content, header.dtype).reshape(header.shape[::-1])  # x runs fastest
    values = stored.astype(header.dtype.newbyteorder("="))
    if (header.slope, header.shift) != (1.0, 0.0):
        values = values * header.slope + header.shift
    return np.moveaxis(values, 0, -1) if values.ndim > 3 else values


def _content(path: Path) -> tuple[Header, bytes]:
    """The header, and the bytes of the values; gzip's checksum, which comes last, is looked at as well.

    Raises:
        NiftiError: it isn't one, or ends too early.
        EOFError, BadGzipFile, zlib.error: of gzip.
    """
    with opened(path) as file:
        header = read_header(file)
        wanted, packed = math.prod(header.shape) * header.dtype.itemsize, isinstance(file, gzip.GzipFile)
        missing = 0 if packed else header.begin + wanted - path.stat().st_size
        if missing <= 0:
            file.seek(header.begin)
            content = file.read(wanted)
            missing = wanted - len(content)
        if missing > 0:
            raise NiftiError(f"ends {missing} bytes before its last value")
        if packed and len(file.read(MOST_BEHIND + 1)) > MOST_BEHIND:
            raise NiftiError(f"more than {MOST_BEHIND} bytes behind its last value")
    return header, content


def read_header(file: IO[bytes]) -> Header:
    """The header of an open file.

    Raises:
        NiftiError: it isn't one of NIfTI in one file, or holds what isn't read here.
    """
    start = file.read(540)
    order = next((sign for sign in "<>" if len(start) >= 4 and struct.unpack(f"{sign}i", start[:4])[0] in HEADERS), "")
    if not order:
        raise NiftiError("no NIfTI: its header's length is neither 348 nor 540")
    version = HEADERS[struct.unpack(f"{order}i", start[:4])[0]]
    at, magic = MAGIC[version]
    if start[at : at + 4] != magic:
        raise NiftiError("a header alone, or of ANALYZE; header and values in one file (.nii) are read")
    axes, kind, begin, slope, shift = (_one if version == "1" else _two)(start, order)
    if kind not in DATATYPES:
        raise NiftiError(f"values of NIfTI's type {kind}; integers and floating point are read")
    count, *lengths = axes
    if not 3 <= count <= MOST_AXES or min(lengths[:count]) < 1:
        raise NiftiError(f"axes {lengths[: max(0, min(count, MOST_AXES))]}; a volume has three, or more with channels")
    space, further = lengths[:3], [length for length in lengths[3:count] if length > 1]
    if len(further) > 1:
        raise NiftiError(f"{'×'.join(map(str, further))} values of a voxel; one axis of channels is read")
    if math.isinf(slope):
        raise NiftiError(f"its values are {slope:g} times what is stored: no slope")
    scaled = slope != 0.0 and not math.isnan(slope)  # a slope of 0 says that none is meant, and so does NaN
    if scaled and not math.isfinite(shift):
        raise NiftiError(f"its values are {slope:g} times what is stored, plus {shift:g}: no intercept")
    how = (slope, shift) if scaled else (1.0, 0.0)
    return Header((*space, *further), np.dtype(f"{order}{DATATYPES[kind]}"), begin, *how)


def _one(start: bytes, order: str) -> tuple[tuple[int, ...], int, int, float, float]:
    """Axes, type, begin, slope and shift of NIfTI-1."""
    axes, (kind,) = struct.unpack_from(f"{order}8h", start, 40), struct.unpack_from(f"{order}h", start, 70)
    begin, slope, shift = struct.unpack_from(f"{order}3f", start, 108)
    if not math.isfinite(begin) or begin < 348:
        raise NiftiError(f"its values begin at byte {begin:g}, within its header")
    return axes, kind, int(begin), slope, shift


def _two(start: bytes, order: str) -> tuple[tuple[int, ...], int, int, float, float]:
    """The same of NIfTI-2."""
    if len(start) < 540:
        raise NiftiError("ends within its header")
    axes, (kind,) = struct.unpack_from(f"{order}8q", start, 16), struct.unpack_from(f"{order}h", start, 12)
    (begin,), (slope, shift) = struct.unpack_from(f"{order}q", start, 168), struct.unpack_from(f"{order}2d", start, 176)
    if begin < 540:
        raise NiftiError(f"its values begin at byte {begin}, within its header")
    return axes, kind, begin, slope, shift


def opened(path: Path) -> IO[bytes]:
    """The file to be read, unpacked where its name ends in .gz."""
    packed = path.name.lower().endswith(".gz")
    return cast("IO[bytes]", gzip.open(path, "rb") if packed else path.open("rb"))
