"""Whether a PNG holds all of its rows: Pillow takes those for zeros that its stream, properly ended, lacks."""

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from pipeline.errors import ImageError

SIGNATURE, HEAD, IHDR = (
    8,
    struct.Struct(">I4s"),
    struct.Struct(">IIBBBBB"),
)  # https://www.w3.org/TR/png-3/#5PNG-file-signature
CHECKSUM = 4  # bytes behind a chunk
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a pixel, by the type of colour
# Of each pass of an interlaced file: its first column and row, and its steps (Adam7).
PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
PIECE = 2**20  # bytes that are inflated at once


def check_rows(path: Path, image: Image.Image) -> None:
    """That none of a PNG's rows is missing: inflates one again that is interlaced, or whose last row is of one colour.

    Args:
        path: of the file.
        image: as Pillow opened it.

    Raises:
        ImageError: some are.
    """
    if image.format != "PNG":
        return
    last_row = image.crop((0, image.height - 1, image.width, image.height))
    if not image.info.get("interlace") and not of_one_colour(last_row):
        return
    with path.open("rb") as file:
        file.seek(SIGNATURE + HEAD.size)
        wanted = stream_bytes(*IHDR.unpack(file.read(IHDR.size)))
    found = 0
    for piece in inflated(path):
        found += len(piece)
        if found >= wanted:
            return
    raise ImageError(f"{path}: ends before its last row: {found:,} of {wanted:,} bytes")


def of_one_colour(row: Image.Image) -> bool:
    """Whether all pixels are the same."""
    extrema = row.getextrema()
    bands = extrema if isinstance(extrema[0], tuple) else (extrema,)
    return all(least == most for least, most in bands)


def stream_bytes(width: int, height: int, depth: int, colour: int, _packing: int, _filter: int, interlaced: int) -> int:
    """The bytes of all rows with their filters' types, of a header's fields."""

    def rows(columns: int, lines: int) -> int:
        return lines * (1 + math.ceil(columns * SAMPLES[colour] * depth / 8)) if columns else 0

    if not interlaced:
        return rows(width, height)
    return sum(rows(len(range(x, width, right)), len(range(y, height, down))) for x, y, right, down in PASSES)


def inflated(path: Path) -> Iterator[bytes]:
    """What a file's rows are packed as, inflated, piece by piece."""
    unpack = zlib.decompressobj()
    with path.open("rb") as file:
        file.seek(SIGNATURE)
        while len(head := file.read(HEAD.size)) == HEAD.size:
            length, kind = HEAD.unpack(head)
            if kind != b"IDAT":
                file.seek(length + CHECKSUM, 1)
                continue
            packed = file.read(length)
            file.seek(CHECKSUM, 1)
            while packed and not unpack.eof:
                yield unpack.decompress(packed, PIECE)
                packed = unpack.unconsumed_tail
