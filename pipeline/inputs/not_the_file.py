"""What lies in a file's place where its download went wrong: a pointer of Git LFS, or a page of HTML."""

from contextlib import suppress
from pathlib import Path

POINTER = b"version https://git-lfs"
PAGES = (b"<!doctype html", b"<html")


def in_its_place(path: Path) -> str:
    """What a file is in place of what its name says, in a clause; empty where it is neither of them."""
    first = b""
    with suppress(OSError), path.open("rb") as file:
        first = file.read(len(POINTER)).lstrip().lower()
    if first == POINTER:
        return "a pointer of Git LFS in the file's place; git lfs pull fetches it"
    return "a page of HTML in the file's place; download it again" if first.startswith(PAGES) else ""
