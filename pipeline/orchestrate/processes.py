"""Processes of a run: those that a worker leaves behind, and the processor time that they and all others use.

Only Linux has the /proc and the subreaper that this needs; elsewhere ending a worker ends its process group alone.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pipeline.records.run_record import RunWarning

PROC = Path("/proc")
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
TICKS = os.sysconf("SC_CLK_TCK")  # a second
BUSY = (0, 1, 2, 5, 6)  # of /proc/stat's first line: user, nice, system, interrupts of both kinds
LEAST_SECONDS = 1.0  # of a side's samples, as the system counts in hundredths
MORE_OWN = 0.5  # processors, beyond those that the run gives


def adopt() -> None:
    """Make this process the parent of every descendant whose own parent ends, so that it can be found and ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def parents(proc: Path = PROC) -> dict[int, int]:
    """Return the parent of every process; nothing where the system has no /proc."""
    parent_of = {}
    try:
        names = os.listdir(proc)  # noqa: PTH208 - names alone
    except OSError:
        return {}
    for name in names:
        if name.isdecimal() and (fields := fields_of(int(name), proc)):
            parent_of[int(name)] = int(fields[1])
    return parent_of


def fields_of(process: int, proc: Path = PROC) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none for a process that is gone."""
    try:
        return (proc / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def state(process: int) -> str:
    """Return the letter of a process's state, such as T where a signal has stopped it; empty where it is gone."""
    return next(iter(fields_of(process)), "")


def descendants(roots: Iterable[int], of: Mapping[int, int]) -> set[int]:
    """Return children of the processes, their children and so on, by the parents that `parents` gave."""
    below: set[int] = set()
    following = list(roots)
    while following:
        parent = following.pop()
        new = {child for child, its_parent in of.items() if its_parent == parent} - below
        below |= new
        following += new
    return below


def orphans() -> set[int]:
    """Return this process's children in sessions other than its own: a worker left them, or is one."""
    own, detached = os.getsid(0), set()
    for child in [child for child, parent in parents().items() if parent == os.getpid()]:
        with suppress(OSError):
            if os.getsid(child) != own:
                detached.add(child)
    return detached


def end(processes: Iterable[int]) -> None:
    """Kill the processes, and reap those that are this process's children."""
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)
    for process in processes:
        with suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)


class Use(NamedTuple):
    """Wall seconds, and the processor seconds that one side and all other processes used in them."""

    wall: float = 0.0
    own: float = 0.0
    others: float = 0.0

    def further(self, more: "Use") -> "Use":
        """Return the sum of both."""
        return Use(self.wall + more.wall, self.own + more.own, self.others + more.others)


def now(process: int, proc: Path = PROC) -> Use | None:
    """Return the counts so far, of this process and of all others; None where the system keeps none."""
    try:
        fields = (proc / "stat").read_text().split(maxsplit=11)[1:9]
        busy = sum(int(fields[index]) for index in BUSY) / TICKS
    except (OSError, ValueError, IndexError):
        return None
    own = sum(map(int, fields_of(process, proc)[11:15])) / TICKS  # its own and its ended children's, user and system
    return Use(time.monotonic(), own, busy - own)


def between(before: Use | None, after: Use | None) -> Use:
    """Return what was used from `before` to `after`; nothing where the system keeps no counts."""
    if before is None or after is None:
        return Use()
    wall, own = after.wall - before.wall, max(0.0, after.own - before.own)
    return Use(wall, own, max(0.0, after.others - before.others))


def taken_share(use: Use, threads: int) -> float | None:
    """Return the share of the processors for `threads` threads that other programs left too few of."""
    if use.wall < LEAST_SECONDS or not use.others + use.own:
        return None
    short = use.others / use.wall + threads - (os.cpu_count() or threads)
    return min(1.0, max(0.0, short / threads))


def more_threads(name: str, use: Use, threads: int | None) -> RunWarning | None:
    """Return a warning where a stage used more processors than the `threads` that the run gives it on a CPU, if any."""
    if threads is None or use.wall < LEAST_SECONDS or use.own <= (threads + MORE_OWN) * use.wall:
        return None
    text = f"{name} used {use.own / use.wall:.1f} processors, and threads={threads}"
    return RunWarning("unfair", text, "its ratio is to a baseline that kept to that: leave threads out")
