"""The header of a JPEG file, as far as it decides whether a GPU decodes the file to the same values as Pillow."""

import struct
from dataclasses import dataclass

import numpy as np
from PIL import Image

START, END, SCAN, BASELINE, EXIF, ADOBE = 0xD8, 0xD9, 0xDA, 0xC0, 0xE1, 0xEE
OTHER_FRAMES = {*range(0xC1, 0xD0)} - {0xC4, 0xC8, 0xCC}  # progressive, lossless, arithmetic
ORIENTATION, UPRIGHT = 0x0112, 1  # Exif's
YCBCR = 1  # Adobe's transform
YCBCR_CHANNELS = bytes((1, 2, 3))  # their numbers in a frame, by which libjpeg tells YCbCr from RGB
SAMPLINGS = {(1, 1): (1, 1), (2, 1): (2, 1), (2, 2): (2, 2)}  # of luma, where both chromas have (1, 1)
LEAST_SIDE, MOST_PIXELS = 8, 2**26
CHANNELS = 3


@dataclass(frozen=True)
class Jpeg:
    """A file that a GPU can decode."""

    content: np.ndarray  # of the file, uint8
    shape: tuple[int, int, int]  # height, width and channels
    per_chroma: tuple[int, int]  # pixels of luma for each of chroma, along the width and along the height
    dtype = np.dtype(np.uint8)


def parse(content: bytes) -> Jpeg | None:
    """Return a whole baseline file in YCbCr, 8 bits, upright; None for any other content.

    ITU-T T.81 (1992), annex B. Files without their end marker are left to Pillow, which says what is wrong.
    """
    if content[:2] != bytes((0xFF, START)) or content[-2:] != bytes((0xFF, END)):
        return None
    at, found = 2, None
    while at + 4 <= len(content) and content[at] == 0xFF:
        marker, length = content[at + 1], int.from_bytes(content[at + 2 : at + 4], "big")
        part = content[at + 4 : at + 2 + length]
        if marker == SCAN:
            return found
        if marker in OTHER_FRAMES or not is_plain(marker, part):
            return None
        if marker == BASELINE:
            found = frame(part, content)
        at += 2 + length
    return None


def is_plain(marker: int, part: bytes) -> bool:
    """Return whether a segment leaves the image upright and its colours YCbCr."""
    if marker == ADOBE and part.startswith(b"Adobe"):
        return part[11:12] == bytes([YCBCR])
    if marker == EXIF and part.startswith(b"Exif\0\0"):
        exif = Image.Exif()
        try:
            exif.load(part)
            return int(exif.get(ORIENTATION, UPRIGHT)) == UPRIGHT
        except Exception:  # noqa: BLE001 - whatever Pillow makes of odd bytes, it reads the file then
            return False
    return True


def frame(part: bytes, content: bytes) -> Jpeg | None:
    """Return the file of a frame header, if its size and its sampling are among those that a GPU decodes."""
    if len(part) != 6 + 3 * CHANNELS or part[6::3] != YCBCR_CHANNELS:
        return None
    bits, height, width, channels = struct.unpack(">BHHB", part[:6])
    across, along = zip(*((part[6 + 3 * c + 1] >> 4, part[6 + 3 * c + 1] & 15) for c in range(CHANNELS)), strict=True)
    per_chroma = SAMPLINGS.get((across[0], along[0]))
    chroma_is_plain = {*across[1:], *along[1:]} == {1}
    in_range = min(height, width) >= LEAST_SIDE and height * width <= MOST_PIXELS
    if (bits, channels) != (8, CHANNELS) or per_chroma is None or not chroma_is_plain or not in_range:
        return None
    return Jpeg(np.frombuffer(content, np.uint8), (height, width, channels), per_chroma)
