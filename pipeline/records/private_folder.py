"""Folders and files that no other user can have put there, and locks among this user's processes."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OTHER_WRITERS = stat.S_IWGRP | stat.S_IWOTH


def private_folder(path: Path) -> Path:
    """The folder, made for this user alone where it isn't there, and closed to other writers where it is.

    Raises:
        OSError: it can't be made, is a link, or is another user's.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{path} is no folder")
    if found.st_uid != os.getuid():
        raise PermissionError(f"{path} is another user's")
    if found.st_mode & OTHER_WRITERS:
        path.chmod(stat.S_IMODE(found.st_mode) & ~OTHER_WRITERS)
    return path


def private_text(path: Path, most_bytes: int) -> str:
    """The text of a file of this user's own.

    Raises:
        OSError: there is none, it is a link, another user's or too large, or everybody may write in it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.getuid() or found.st_mode & stat.S_IWOTH:
            raise PermissionError(f"{path} may be another user's work")
        if not stat.S_ISREG(found.st_mode) or found.st_size > most_bytes:
            raise OSError(f"{path} is no file of at most {most_bytes} bytes")
        return file.read()


def open_lock(path: Path) -> int:
    """A descriptor of the lock's file, which no process that is started inherits.

    Raises:
        OSError: it can't be opened, or is a link.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of that name, once no other process does; it is free again when this process ends, however it ends.

    Raises:
        OSError: as `open_lock`.
    """
    descriptor = open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
