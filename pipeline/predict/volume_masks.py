"""Answers to volumes as bytes of files: NIfTI with the scan's own header, npy, TIFF of pages; each says what made it.

NIfTI's fields lie where https://nifti.nimh.nih.gov puts them; the text is an extension of the kind "comment".
"""

import gzip
import io
import struct
from pathlib import Path
from typing import Literal

import numpy as np
import tifffile

from pipeline.inputs.nifti import HEADERS, MOST_AXES, opened, read_header
from pipeline.inputs.npy_files import header_read, text_behind
from pipeline.inputs.volume_files import GIVEN_UP, NIFTI, NPY, TIFF, ZARR, suffix_of

STAMP = "unet-ladder "  # before the text that says what made a mask, and of what
COMMENT = 6  # NIfTI's number of the kind of an extension
EXTENSION = 16  # bytes, of which an extension's length is a multiple
MOST_TEXT = 2**16  # bytes of an extension that are read
DATATYPE = {"uint8": 2, "uint16": 512, "float32": 16}
AXES = 3  # of class indices; values have a fourth where a voxel has several


def suffix_of_mask(volume: Path) -> str:
    """The suffix of a volume's mask: its own; of a .zarr, which is a folder, that of an array."""
    found = suffix_of(volume)
    return NPY[0] if found in ZARR else found


def content(labels: np.ndarray, stamp: str, suffix: str, volume: Path) -> bytes:
    """A file with class indices, or with values.

    Args:
        labels: [depth, height, width], uint8 or uint16; values are fp32, and several of a voxel lie last.
        stamp: what made them, and of what.
        suffix: of the file.
        volume: whose mask it is; a NIfTI mask has its affine, its spacing and its units.

    Raises:
        pipeline.inputs.nifti.NiftiError: the volume is no NIfTI any more.
        OSError: nor can it be read.
    """
    text, out = STAMP + stamp, io.BytesIO()
    if suffix in NIFTI:
        plain = nifti(labels, text, volume)
        return gzip.compress(plain, mtime=0) if suffix.endswith(".gz") else plain
    if suffix in TIFF:
        order = "contig" if labels.ndim > AXES else None
        tifffile.imwrite(out, labels, photometric="minisblack", planarconfig=order, description=text, metadata=None)
    else:  # numpy reads several arrays from one file, and np.load the first
        np.save(out, labels)
        np.save(out, np.array(text))
    return out.getvalue()


def stamp_in(path: Path) -> str | None:
    """What a mask's file says of itself; None where it says nothing."""
    suffix = suffix_of(path)
    try:
        text = comment(path) if suffix in NIFTI else description(path) if suffix in TIFF else second_array(path)
    except (*GIVEN_UP, struct.error):
        return None
    return text.removeprefix(STAMP) if text.startswith(STAMP) else None


def nifti(labels: np.ndarray, text: str, volume: Path) -> bytes:
    """A NIfTI file of class indices or values [z, y, x], several values of a voxel last and in its fourth axis.

    Its header is the volume's; errors as of `content`.
    """
    with opened(volume) as file:
        start = file.read(max(HEADERS))
        file.seek(0)
        read_header(file)
    order: Literal["<", ">"] = "<" if is_little(start) else ">"
    first = struct.unpack_from(f"{order}i", start)[0] == min(HEADERS)
    header = bytearray(start[: min(HEADERS) if first else max(HEADERS)])
    padded = text.encode() + b"\0" * (-(8 + len(text.encode())) % EXTENSION)
    begin = len(header) + 4 + 8 + len(padded)
    several = labels.shape[AXES:]
    kind, axes = DATATYPE[labels.dtype.name], [labels.ndim, *labels.shape[AXES - 1 :: -1], *several]
    axes += [1] * (1 + MOST_AXES - len(axes))
    bits = 8 * labels.dtype.itemsize
    if first:
        fields = {"8h": (40, axes), "3h": (68, [0, kind, bits]), "3f": (108, [begin, 1, 0]), "2f": (124, [0, 0])}
    else:
        fields = {"8q": (16, axes), "2h": (12, [kind, bits]), "q4d": (168, [begin, 1, 0, 0, 0]), "i": (504, [0])}
    for form, (at, values) in fields.items():
        struct.pack_into(order + form, header, at, *values)
    extension = struct.pack(f"{order}2i", 8 + len(padded), COMMENT) + padded
    stored = np.moveaxis(labels, -1, 0) if several else labels
    return bytes(header) + b"\1\0\0\0" + extension + stored.astype(labels.dtype.newbyteorder(order)).tobytes()


def is_little(start: bytes) -> bool:
    """Whether a header's first figure, its length, has its least byte first."""
    return struct.unpack_from("<i", start)[0] in HEADERS


def comment(path: Path) -> str:
    """The text of a NIfTI file's first extension; empty where it has none."""
    with opened(path) as file:
        start = file.read(4)
        order = "<" if is_little(start) else ">"
        length = struct.unpack(f"{order}i", start)[0]
        file.seek(length)
        flag, size, kind = struct.unpack(f"{order}4s2i", file.read(12))
        if not flag[0] or kind != COMMENT:
            return ""
        return file.read(min(max(size - 8, 0), MOST_TEXT)).rstrip(b"\0").decode(errors="replace")


def description(path: Path) -> str:
    """The text of a TIFF's first page."""
    with tifffile.TiffFile(path) as file:
        page = file.pages[0]
        return page.description if isinstance(page, tifffile.TiffPage) else ""


def second_array(path: Path) -> str:
    """The text behind an array in a file of numpy's; empty where there is none."""
    with header_read():
        array = np.lib.format.open_memmap(path, mode="r")
    return text_behind(path, array.offset + array.nbytes) or ""
