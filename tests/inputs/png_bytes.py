"""PNGs that Pillow reads and doesn't write."""

import struct
import zlib
from collections.abc import Iterable

import numpy as np

GREY, RGB = 0, 2  # colour types of IHDR (https://www.w3.org/TR/png-3/#11IHDR)


def chunk(kind: bytes, content: bytes) -> bytes:
    """One part of a PNG."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_of_stream(packed: Iterable[bytes], header: tuple[int, ...], before: bytes = b"") -> bytes:
    """A PNG of pieces of its packed rows.

    Args:
        packed: each becomes a chunk.
        header: IHDR's fields.
        before: further chunks.
    """
    first = chunk(b"IHDR", struct.pack(">IIBBBBB", *header)) + before
    return b"\x89PNG\r\n\x1a\n" + first + b"".join(chunk(b"IDAT", each) for each in packed) + chunk(b"IEND", b"")


def png_of(rows: list[bytes], width: int, bits: int, colour: int) -> bytes:
    """A PNG of packed rows, each after a filter of 0, with so many bits of each channel."""
    packed = zlib.compress(b"".join(b"\0" + row for row in rows))
    return png_of_stream([packed], (width, len(rows), bits, colour, 0, 0, 0))


def png_of_48_bits(image: np.ndarray) -> bytes:
    """Of an image [height, width, 3], big-endian uint16."""
    return png_of([row.tobytes() for row in image], image.shape[1], 16, RGB)


def png_of_few_bits(values: np.ndarray, bits: int) -> bytes:
    """Of grey values [height, width], uint8, in 2 or 4 bits each."""
    rows = [np.packbits(np.unpackbits(row[:, None], axis=1)[:, 8 - bits :].ravel()).tobytes() for row in values]
    return png_of(rows, values.shape[1], bits, GREY)
