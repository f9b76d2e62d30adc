"""Whether a file is the one that it was, without reading it."""

from pathlib import Path

FileMark = tuple[int, int, int, int]


def mark_of(path: Path) -> FileMark | None:
    """What changes with every writing of a file, and no program can set back; None where there is none.

    The time of the last change of its inode is the system's own, unlike that of its contents.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns
