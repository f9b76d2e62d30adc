"""Files on disk: atomic writes of text and JSON, private folders, locks, and digests of sources and data."""

import ctypes
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from conf import ROOT

LONGEST_NAME = 255 - len(".4194304.part")  # bytes of a name, less the largest process id of Linux


def write_json(value: object, path: Path) -> None:
    """Write plain JSON values, one value a line."""
    write_text(json_text(value, indent=1), path)


def json_text(value: object, indent: int | None = None) -> str:
    """Encode plain JSON values; NaN and infinities become null.

    A byte of a file name that is not UTF-8, which Python keeps as a lone surrogate, is written as its escape.
    """
    try:
        content = msgspec.json.encode(value, enc_hook=plain)
    except UnicodeEncodeError:
        content = msgspec.json.encode(spelt_out(value), enc_hook=plain)
    return (content if indent is None else msgspec.json.format(content, indent=indent)).decode()


def plain(value: Any) -> object:
    """Return a library's own text or number, such as torch's version or numpy's integer, as Python's."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    return value.item() if hasattr(value, "item") else float(value)


def spelt_out(value: object) -> object:
    """Return the values with each lone surrogate in a text as its escape of six characters."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {spelt_out(key): spelt_out(part) for key, part in value.items()}
    return [*map(spelt_out, value)] if isinstance(value, list | tuple) else value


def write_text(text: str, path: Path) -> None:
    """Write a text file as `write_bytes` does; a lone surrogate becomes its escape."""
    write_bytes(text.encode(errors="backslashreplace"), path)


def write_bytes(content: bytes, path: Path) -> None:
    """Write the file atomically and durably; an interrupted write leaves the old file."""
    scratch = unfinished(path)
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # of a full disk none is named
        raise
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_files(files: Sequence[Path]) -> None:
    """Sync files of one file system to disk, with one call where the C library has `syncfs`."""
    at_once = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    for file in files[:1] if at_once else files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            if at_once is None:
                os.fsync(descriptor)
            elif at_once(descriptor):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(file))
        finally:
            os.close(descriptor)


def unfinished(path: Path, process: int | None = None) -> Path:
    """Return the provisional name of a file that a process, or this one, will name; a digest replaces a long name."""
    name, digits = os.fsencode(path.name), process or os.getpid()
    short = path.name if len(name) <= LONGEST_NAME else hashlib.sha256(name).hexdigest()
    return path.with_name(f"{short}.{digits}.part")


def sync_folder(folder: Path) -> None:
    """Sync the folder's entries to disk, if the file system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@cache
def elsewhere(folder: Path) -> Path:  # noqa: ARG001 - the key of the cache
    """Return a temporary folder to use instead of a run's, the same for record and report."""
    return Path(tempfile.mkdtemp(prefix="unet-ladder-"))


OTHER_WRITERS = stat.S_IWGRP | stat.S_IWOTH


def private_folder(path: Path) -> Path:
    """Create the folder for this user alone, or close an existing one to other writers; return it."""
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
    """Open the file of a lock; child processes do not inherit the descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


MOST_READ_BYTES = 2 * 2**30  # some seconds of reading
PACKAGE = Path(__file__).resolve().parents[1]


def digest(files: Iterable[tuple[str, Path]]) -> str:
    """Return the SHA-256 of the files' names and contents, in the order of the names."""
    whole = hashlib.sha256()
    for name, path in sorted(files):
        whole.update(f"{name}\0{file_digest(path)}\n".encode(errors="surrogateescape"))  # of a name that is no UTF-8
    return whole.hexdigest()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's contents."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        error.filename = str(path)
        raise


def files_in(folder: Path, pattern: str = "*") -> list[tuple[str, Path]]:
    """Return the matching files below a folder, each with its path within it; hidden files are left out."""
    found = ((path.relative_to(folder), path) for path in folder.rglob(pattern) if path.is_file())
    return [(str(name), path) for name, path in found if not any(part.startswith(".") for part in name.parts)]


@cache
def code_digest() -> str:
    """Return the SHA-256 of the program's own sources: the pipeline, the networks, and the compiler's library."""
    library = find_spec("pipeline.compiler")  # installed, it lies elsewhere
    return sources_digest(
        [PACKAGE, ROOT / "models", *map(Path, (library and library.submodule_search_locations) or [])]
    )


def sources_digest(folders: Iterable[Path]) -> str:
    """Return the SHA-256 of the Python files below folders, whose place does not matter."""
    return digest((f"{folder.name}/{name}", path) for folder in folders for name, path in files_in(folder, "*.py"))


def own_code_digest(targets: Iterable[str | None]) -> str | None:
    """Return the SHA-256 of the user's modules, or packages, in the current folder that hold targets; None of none."""
    tops = sorted({target.partition(".")[0] for target in targets if target} - {"models", "pipeline"})
    modules = [(f"{top}.py", Path(f"{top}.py")) for top in tops if Path(f"{top}.py").is_file()]
    packages = [(f"{top}/{name}", path) for top in tops for name, path in files_in(Path(top), "*.py")]
    return digest([*modules, *packages]) if modules or packages else None


def data_digest(places: Iterable[str | None]) -> str | None:
    """Return the SHA-256 of the user's files, or folders of files; None without any."""
    given = [Path(place) for place in places if place]
    if not given:
        return None
    files = [
        (f"{index}/{name}", path)
        for index, place in enumerate(given)
        for name, path in ([(place.name, place)] if place.is_file() else files_in(place))
    ]
    sizes = [(name, path.stat().st_size) for name, path in sorted(files)]
    if sum(size for _, size in sizes) > MOST_READ_BYTES:
        return hashlib.sha256(repr(sizes).encode()).hexdigest()
    return digest(files)
