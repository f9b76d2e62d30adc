"""The machine: files that only this user can have written, and the processors that this process may use."""

import fcntl
import hashlib
import json
import math
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pipeline.kernels

OTHER_WRITERS = stat.S_IWGRP | stat.S_IWOTH
QUOTA = Path("/sys/fs/cgroup/cpu.max")  # such as "200000 100000" or "max 100000" (the kernel's cgroup-v2.rst)


def write_json(value: object, path: Path) -> None:
    """Write plain JSON values in one step: an interrupted write leaves the old file."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        scratch.write_text(json.dumps(value, indent=1), encoding="utf-8")
        scratch.replace(path)
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)


def private_folder(path: Path) -> Path:
    """Return this user's folder, made if missing and closed to other writers; raise OSError where it isn't."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{path} is no folder")
    if status.st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user")
    if status.st_mode & OTHER_WRITERS:
        path.chmod(stat.S_IMODE(status.st_mode) & ~OTHER_WRITERS)
    return path


def private_text(path: Path, most_bytes: int) -> str:
    """Return the text of a file that only this user can have written; raise OSError where it isn't, or is large."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
        status = os.fstat(descriptor)
        if status.st_uid != os.getuid() or status.st_mode & stat.S_IWOTH:
            raise PermissionError(f"{path} may be written by another user")
        if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
            raise OSError(f"{path} is no file of at most {most_bytes} bytes")
        return file.read()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file among this user's processes; it is free again when this process ends, however it ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@cache
def code_digest() -> str:
    """Return the SHA-256 of the library's sources, which decide which tile is fastest."""
    homes = {Path(__file__).parent, Path(pipeline.kernels.__path__[0])}  # installed, the second lies within the first
    named = {path: path.relative_to(home) for home in homes for path in home.rglob("*.py")}
    whole = hashlib.sha256()
    for path, name in sorted(named.items()):
        whole.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def processors() -> int:
    """Return how many processors this process may use: its affinity, and a container's quota of processor time."""
    seen = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = map(int, QUOTA.read_text(encoding="utf-8").split())  # "max" is no number
        return min(seen, max(1, math.ceil(quota / period)))
    return seen
