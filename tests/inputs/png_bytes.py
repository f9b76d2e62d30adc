"""PNGs that Pillow reads and doesn't write."""

import struct
import zlib

import numpy as np

GREY, RGB = 0, 2  # colour types of IHDR (https://www.w3.org/TR/png-3/#11IHDR)


def png_of(rows: list[bytes], width: int, bits: int, colour: int) -> bytes:
    """A PNG of packed rows, each after a filter of 0, with so many bits of each channel."""
    header = struct.pack(">IIBBBBB", width, len(rows), bits, colour, 0, 0, 0)
    packed = zlib.compress(b"".join(b"\0" + row for row in rows))
    chunks = ((b"IHDR", header), (b"IDAT", packed), (b"IEND", b""))
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def png_of_48_bits(image: np.ndarray) -> bytes:
    return png_of([row.tobytes() for row in image], image.shape[1], 16, RGB)


def png_of_few_bits(values: np.ndarray, bits: int) -> bytes:
    rows = [np.packbits(np.unpackbits(row[:, None], axis=1)[:, 8 - bits :].ravel()).tobytes() for row in values]
    return png_of(rows, values.shape[1], bits, GREY)
