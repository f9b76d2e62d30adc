"""Write files whole or not at all, as JSON that any reader takes; private folders and locks."""

import json
import math
import os
import re
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

HALF = re.compile(r"\\u[dD][89a-fA-F]")  # what JSON's escape of one begins with, and that of two that are one character
INEXACT = (float, dict, list, tuple)  # what is or may hold a figure that is NaN


def write_json(value: object, path: Path) -> None:
    """Write plain JSON values, a value a line.

    Raises:
        OSError: as `write_text`.
    """
    write_text(json_text(value, indent=1), path)


def json_text(value: object, indent: int | None = None) -> str:
    """Plain JSON values; a figure that is NaN or infinite, which JSON has no word for, stands as null.

    A byte of a file's name that is no UTF-8, which Python keeps as half a character and no reader of JSON takes, stands
    as its escape.
    """
    try:
        text = json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        text = json.dumps(finite(value), indent=indent, allow_nan=False)
    if not HALF.search(text):
        return text
    whole = finite(spelt_out(value))
    return json.dumps(whole, indent=indent, allow_nan=False)


def spelt_out(value: object) -> object:
    """The same JSON values with every half of a character in a text as the six signs of its escape."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {spelt_out(key): spelt_out(part) for key, part in value.items()}
    return [*map(spelt_out, value)] if isinstance(value, list | tuple) else value


def finite(value: object) -> object:
    """The same JSON values with null for every NaN and infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(part) if isinstance(part, INEXACT) else part for key, part in value.items()}
    if not isinstance(value, list | tuple):
        return value
    return [finite(part) if isinstance(part, INEXACT) else part for part in value]


def write_text(text: str, path: Path) -> None:
    """Write a file of text; as `write_bytes`. Half a character in it becomes its escape."""
    write_bytes(text.encode(errors="backslashreplace"), path)


def write_bytes(content: bytes, path: Path) -> None:
    """Write the file in one step that outlasts a power cut; an interrupted write leaves the old file and no other.

    Raises:
        OSError: the disk is full or read-only, or the folder is gone.
    """
    scratch = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the folder's entries on disk, too, where its file system can be asked for that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@cache
def elsewhere(folder: Path) -> Path:  # noqa: ARG001 - what it is cached by
    """A temporary folder in the place of a run's, the same for record and report.

    Raises:
        OSError: no disk takes one.
    """
    return Path(tempfile.mkdtemp(prefix="unet-ladder-"))


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


def open_lock(path: Path) -> int:
    """A descriptor of the lock's file, which no process that is started inherits.

    Raises:
        OSError: it can't be opened, or is a link.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
