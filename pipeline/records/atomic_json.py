"""Writes a file whole or not at all, and JSON that any reader takes."""

import json
import math
import os
from contextlib import suppress
from pathlib import Path

INEXACT = (float, dict, list, tuple)  # what is or may hold a figure that is NaN


def write_json(value: object, path: Path) -> None:
    """Write plain JSON values, a value a line.

    Raises:
        OSError: as `write_text`.
    """
    write_text(json_text(value, indent=1), path)


def json_text(value: object, indent: int | None = None) -> str:
    """Plain JSON values; a figure that is NaN or infinite, which JSON has no word for, stands as null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(finite(value), indent=indent, allow_nan=False)


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
    """Write a file of text; as `write_bytes`."""
    write_bytes(text.encode(), path)


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
