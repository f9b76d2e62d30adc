"""Finds the processes that a worker leaves: a child with a session of its own escapes the worker's process group.

Linux alone has the /proc and the subreaper that this takes; elsewhere a worker's process group is all that is ended.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
ROUNDS = 3  # of looking and killing


def adopt() -> None:
    """From now on a process whose parent dies becomes this process's child, so that it can be found and ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def parents(proc: Path = PROC) -> dict[int, int]:
    """The parent of every process; empty where the system doesn't tell."""
    found = {}
    for entry in proc.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):  # it ended meanwhile
            found[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
    return found


def children(process: int, of: Mapping[int, int]) -> set[int]:
    """The children of a process, in the parents that `parents` gave."""
    return {child for child, parent in of.items() if parent == process}


def descendants(roots: Iterable[int], of: Mapping[int, int]) -> set[int]:
    """Children of the processes, and theirs, and so on."""
    found: set[int] = set()
    following = list(roots)
    while following:
        new = children(following.pop(), of) - found
        found |= new
        following += new
    return found


def adopted(of: Mapping[int, int]) -> set[int]:
    """Children that this process didn't start itself in its own session: a worker left them, or is one."""
    own = os.getsid(0)
    return {child for child in children(os.getpid(), of) if _session(child) not in (own, None)}


def _session(process: int) -> int | None:
    try:
        return os.getsid(process)
    except OSError:
        return None


def end_all() -> None:
    """Kill every descendant of this process, also those that are started meanwhile."""
    for _ in range(ROUNDS):
        _kill(descendants([os.getpid()], parents()))


def _kill(processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def end(processes: Iterable[int]) -> None:
    """Kill the processes, and take note of the end of those that are this process's children."""
    _kill(processes)
    for process in processes:
        with suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)
