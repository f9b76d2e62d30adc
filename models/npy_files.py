"""Reads .npy files, whose header numpy takes for Python: whatever is wrong with it is one kind of error."""

import tokenize
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

# What numpy raises besides ValueError where a header is no Python, or gives sizes that no array has.
OF_A_HEADER = (ArithmeticError, MemoryError, RecursionError, SyntaxError, TypeError, tokenize.TokenError)


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
    if beyond := path.stat().st_size - array.offset - array.nbytes:
        raise ValueError(f"{beyond} bytes follow the array; a file holds one")
    return array
