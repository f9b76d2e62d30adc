"""The digests of a bundle's files: written when it is exported, and compared before anything of it is loaded."""

import hashlib
from pathlib import Path

from pipeline.export.bundle_contract import ContractError
from pipeline.records.atomic_json import write_text
from pipeline.records.content_digest import file_digest

SUMS = "SHA256SUMS"
CODE = {".py", ".pyc", ".so"}  # which a bundle's loader could import in the place of a package


def write_sums(folder: Path) -> None:
    """SHA-256 of every other file, as sha256sum writes and reads them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    files = [path for path in files if "__pycache__" not in path.parts]
    write_text("".join(f"{file_digest(path)}  {path.relative_to(folder)}\n" for path in files), folder / SUMS)


def read_sums(folder: Path) -> str:
    """The list as it was written.

    Raises:
        ContractError: it can't be read, or is no regular file.
    """
    try:
        if (folder / SUMS).is_file():
            return (folder / SUMS).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        pass
    raise ContractError(f"{folder / SUMS}: no list of digests; export the bundle again")


def bundle_digest(folder: Path) -> str:
    """SHA-256 of the list, and so of all that was exported; errors as of `read_sums`."""
    return hashlib.sha256(read_sums(folder).encode()).hexdigest()


def changed_files(folder: Path) -> list[str]:
    """The files that aren't the ones that were exported, are gone, or are code that was added.

    Raises:
        ContractError: the list of digests can't be read.
    """
    named = [line.partition("  ")[::2] for line in read_sums(folder).splitlines()]
    changed = [name for wanted, name in named if not (folder / name).is_file() or file_digest(folder / name) != wanted]
    there = [path.relative_to(folder) for path in folder.rglob("*") if path.suffix in CODE]
    known = {name for _, name in named}
    added = sorted(str(path) for path in there if str(path) not in known and "__pycache__" not in path.parts)
    return [*changed, *added]
