"""What the program and its data were, as digests: two runs of one digest had the same files."""

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from conf import ROOT

MOST_READ_BYTES = 2 * 2**30  # some seconds of reading
PACKAGE = Path(__file__).resolve().parents[1]


def digest(files: Iterable[tuple[str, Path]]) -> str:
    """SHA-256 over the names and contents of the files, in the order of their names.

    Raises:
        OSError: one can't be read.
    """
    whole = hashlib.sha256()
    for name, path in sorted(files):
        whole.update(f"{name}\0{file_digest(path)}\n".encode(errors="surrogateescape"))  # of a name that is no UTF-8
    return whole.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's contents.

    Raises:
        OSError: it can't be read; it names the file, also where the system didn't.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        error.filename = str(path)
        raise


def files_in(folder: Path, pattern: str = "*") -> list[tuple[str, Path]]:
    """Every file below the folder that matches, with its path within the folder; hidden ones are left out."""
    found = ((path.relative_to(folder), path) for path in folder.rglob(pattern) if path.is_file())
    return [(str(name), path) for name, path in found if not any(part.startswith(".") for part in name.parts)]


@cache
def code_digest() -> str:
    """Return the SHA-256 of the program's own sources: the pipeline, the networks, and the compiler's library."""
    library = find_spec("pipeline.compiler")  # installed, it lies elsewhere
    folders = [PACKAGE, ROOT / "models", *map(Path, (library and library.submodule_search_locations) or [])]
    return digest((f"{folder.name}/{name}", path) for folder in folders for name, path in files_in(folder, "*.py"))


def data_digest(places: Iterable[str | None]) -> str | None:
    """SHA-256 of the user's own files; None where there are none.

    Each place is a file or a folder of them. Beyond 2 GiB it is that of their names and sizes alone.

    Raises:
        OSError: one can't be read.
    """
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
