"""Whether a run is under way in a folder: a lock on its claim, which ends with the process that holds it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.config.request_error import RequestError
from pipeline.records.codec import CLAIM


@contextmanager
def under_way(folder: Path) -> Iterator[None]:
    """Others see within that the run of this folder is under way, where its file system has locks."""
    descriptor = None
    with suppress(OSError):
        descriptor = os.open(folder / CLAIM, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def refuse_running(folder: Path) -> None:
    """That a run that is to be resumed has come to its end: two would disturb each other, and neither would know.

    Raises:
        RequestError: it is still under way.
    """
    try:
        descriptor = os.open(folder / CLAIM, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RequestError(f"resume={folder}: it is still under way; wait for it, or end it by Ctrl-C") from None
    except OSError:
        return
    finally:
        os.close(descriptor)
