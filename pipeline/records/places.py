"""Texts that name files of the machine, as a record keeps them: from the package on, not from the machine's root."""

import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

BEFORE_A_PATH = r"(?<![\w./-])"  # after these a path has begun already


def without_places(text: str, roots: Iterable[str] | None = None) -> str:
    """The text with the folders cut off its paths, such as `torch/jit/__init__.py`.

    Args:
        text: as a library says it.
        roots: the folders; those that Python imports from, and the current one, by default.
    """
    known = set[str]()
    for root in (*sys.path, "") if roots is None else roots:
        with suppress(OSError):  # a relative one, where the current folder was removed
            known.add(str(Path(root).absolute()))
    for root in sorted(known - {os.sep}, key=len, reverse=True):  # the deepest first: one may lie within another
        text = re.sub(f"{BEFORE_A_PATH}{re.escape(root + os.sep)}", "", text)
    return text
