"""Reads .npy files, whose header numpy takes for Python: whatever is wrong with it is one kind of error."""

import io
import tokenize
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

# What numpy raises besides ValueError where a header is no Python, or gives sizes that no array has.
OF_A_HEADER = (ArithmeticError, MemoryError, RecursionError, SyntaxError, TypeError, tokenize.TokenError)

MOST_TEXT = 2**16  # bytes behind an array


@contextmanager
def header_read() -> Iterator[None]:
    """Within, numpy reads the header of an array.

    Raises:
        ValueError: it is none.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of sizes beyond 64 bits, for which mapping then fails
            yield
    except OF_A_HEADER as error:
        raise ValueError(f"no header of an array: {type(error).__name__}") from error


def mapped(path: Path) -> np.ndarray:
    """The array of any shape and type that a file holds: mapped, so that no header asks for memory.

    Raises:
        OSError, ValueError: it can't be read.
    """
    with header_read():
        array = np.lib.format.open_memmap(path, mode="r")
    end = array.offset + array.nbytes
    if (beyond := path.stat().st_size - end) and text_behind(path, end) is None:
        raise ValueError(f"{beyond} bytes follow the array; a file holds one")
    return array


def text_behind(path: Path, end: int) -> str | None:
    """A text that follows the array in a file, as the masks of `predict` say what made them; None where none does.

    Args:
        path: of the file.
        end: of its array, in bytes.
    """
    try:
        with path.open("rb") as file, header_read():
            file.seek(end)
            if len(rest := file.read(MOST_TEXT + 1)) > MOST_TEXT:
                return None
            text = np.lib.format.read_array(held := io.BytesIO(rest), allow_pickle=False)
            return str(text) if text.dtype.kind == "U" and not text.shape and not held.read() else None
    except ValueError:
        return None
