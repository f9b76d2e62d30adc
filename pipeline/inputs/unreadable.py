"""What readers of images raise on bytes that are none, and the line for it."""

import struct
from pathlib import Path

from PIL import UnidentifiedImageError

from pipeline.errors import ImageError
from pipeline.inputs.not_the_file import in_its_place

# What Pillow, tifffile and numpy raise on bytes that are no image, or one that they can't read.
UNREADABLE = (
    UnidentifiedImageError, OSError, SyntaxError, ValueError, EOFError, KeyError, struct.error, TypeError,
    AssertionError,  # tifffile's
)  # fmt: skip


MOST_OF_A_REASON = 120  # characters


def unreadable(path: Path, error: Exception, kind: str = "an image") -> ImageError:
    """The line for a file that a reader gave up on, with what it said where that is more than the file's name."""
    if path.is_file() and (other := in_its_place(path)):
        return ImageError(f"{path}: {other}")
    said = " ".join(str(error).split())
    why = f": {said[:MOST_OF_A_REASON]}" if said and path.name not in said else ""
    return ImageError(f"{path}: not {kind} that can be read ({type(error).__name__}{why})")
