"""Where a run's files go while its own folder takes none: the disk is full, or has become read-only."""

import tempfile
from functools import cache
from pathlib import Path


@cache
def elsewhere(folder: Path) -> Path:  # noqa: ARG001 - what it is cached by
    """A temporary folder in the place of a run's, the same for record and report.

    Raises:
        OSError: no disk takes one.
    """
    return Path(tempfile.mkdtemp(prefix="unet-ladder-"))
