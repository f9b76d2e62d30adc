"""Digests of the program's sources and of the user's data."""

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from conf import ROOT

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
    folders = [PACKAGE, ROOT / "models", *map(Path, (library and library.submodule_search_locations) or [])]
    return digest((f"{folder.name}/{name}", path) for folder in folders for name, path in files_in(folder, "*.py"))


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
