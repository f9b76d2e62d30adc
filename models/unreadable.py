"""What readers of images raise on bytes that are none, and the line for it."""

import struct
from pathlib import Path

from PIL import UnidentifiedImageError

from models.errors import ImageError

# What Pillow, tifffile and numpy raise on bytes that are no image, or one that they can't read.
UNREADABLE = (
    UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError, KeyError, struct.error, TypeError,
    AssertionError,  # tifffile's
)  # fmt: skip


def unreadable(path: Path, error: Exception) -> ImageError:
    """The line for a file that a reader gave up on."""
    return ImageError(f"{path}: not an image that can be read ({type(error).__name__})")
