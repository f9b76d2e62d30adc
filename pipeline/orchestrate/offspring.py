"""Finds the processes that a worker leaves: a child with a session of its own escapes the worker's process group.

Linux alone has the /proc and the subreaper that this takes; elsewhere a worker's process group is all that is ended.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

PROC = Path("/proc")
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
ROUNDS = 3  # of looking and killing
PURSUIT_SECONDS = 2.0  # after whoever forks and leaves before all processes are listed
ENDED = ("Z", "X", "")  # states: a corpse, one that is being removed, one that is gone
LOOKS, APART_SECONDS = 10, 0.001  # without prey, until there is none: the kernel's list may miss who is just changing


def adopt() -> None:
    """From now on a process whose parent dies becomes this process's child, so that it can be found and ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def parents(proc: Path = PROC) -> dict[int, int]:
    """The parent of every process; empty where the system doesn't tell."""
    found = {}
    for name in names_in(proc):  # not by a pattern: pathlib looks whether each is there, and fails where one has ended
        if name.isdecimal():
            with suppress(OSError, ValueError, IndexError):  # it ended meanwhile
                found[int(name)] = int((proc / name / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def names_in(folder: Path) -> list[str]:
    """What a folder of the system holds; nothing where there is none."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - names alone
    except OSError:
        return []


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


def own_children(proc: Path = PROC) -> set[int]:
    """As `children` of this process, at once where the kernel lists them."""
    found: set[int] = set()
    lists = 0
    for task in names_in(proc / "self" / "task"):
        with suppress(OSError):  # a thread that has ended meanwhile
            found |= set(map(int, (proc / "self" / "task" / task / "children").read_text().split()))
            lists += 1
    return found if lists else children(os.getpid(), parents(proc))


def pursue(is_prey: Callable[[int], bool]) -> bool:
    """Kill every child of this process that is prey, until there is none: False where there always is another one.

    A process that forks and leaves becomes another one before all processes are listed; as its parent is gone, it is
    this process's child.
    """
    ends, quiet = time.monotonic() + PURSUIT_SECONDS, 0
    while quiet < LOOKS:
        if prey := {child for child in own_children() if is_prey(child)}:
            end(prey)
            quiet = 0
            if time.monotonic() > ends:
                return False
        else:
            quiet += 1
            time.sleep(APART_SECONDS)
    return True


def _session(process: int) -> int | None:
    try:
        return os.getsid(process)
    except OSError:
        return None


def state(process: int, proc: Path = PROC) -> str:
    """The letter of a process's state, such as T where a signal has stopped it; empty where nobody says."""
    try:
        return (proc / str(process) / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def end_all() -> None:
    """Kill every descendant of this process, also those that are started meanwhile."""
    own = os.getsid(0)
    for _ in range(ROUNDS):
        signalled(descendants([os.getpid()], parents()), signal.SIGKILL)
        pursue(lambda child: _session(child) not in (own, None))


def signalled(processes: Iterable[int], number: int) -> None:
    """Send each of them a signal; one that is gone, or another user's, is passed over."""
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, number)


def end(processes: Iterable[int]) -> None:
    """Kill the processes, and take note of the end of those that are this process's children."""
    signalled(processes, signal.SIGKILL)
    for process in processes:
        with suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)


class Family:
    """A worker's process and all that it started, however far that went from it.

    Attributes:
        leader: the worker's process.
        living: every worker's that isn't forgotten yet, the youngest last.
    """

    living: ClassVar[list["Family"]] = []

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self._before = adopted(parents())
        self._suspended: set[int] = set()
        self.living.append(self)

    def forget(self) -> None:
        """The worker has ended."""
        if self in self.living:
            self.living.remove(self)

    def started(self) -> set[int]:
        """The descendants of its process."""
        return descendants([self.leader], parents())

    def members(self) -> set[int]:
        """All of it; what has lost its parent is the youngest worker's."""
        of = parents()
        left = self._left_behind(of) if self.living[-1:] == [self] else set()
        for process in left:
            with suppress(ChildProcessError):  # it has another parent; what has ended is to be gone
                os.waitpid(process, os.WNOHANG)
        return {self.leader} | descendants([self.leader], of) | left

    def _left_behind(self, of: Mapping[int, int]) -> set[int]:
        """What was started since the worker was, has lost its parent, and is now this process's; with its children."""
        lost = {process for process in adopted(of) if self._is_lost(process)}
        return lost | descendants(lost, of)

    def _is_lost(self, process: int) -> bool:
        """Whether a child of this process was left behind since the worker was started."""
        return process not in self._before and all(process != family.leader for family in self.living)

    def _is_prey(self, process: int) -> bool:
        """Whether it is lost, in a session of its own, and neither ended nor stopped yet."""
        return (
            self._is_lost(process) and process not in self._suspended and _session(process) not in (os.getsid(0), None)
        )

    def end(self, known: Iterable[int]) -> None:
        """Kill what is left of its descendants: those known, and those that this process has adopted."""
        of = parents()
        end((set(known) & of.keys()) | self._left_behind(of))
        if self.living[-1:] == [self]:
            self._suspended = set()
            pursue(self._is_prey)

    def suspend(self) -> bool:
        """Stop all of it, until `resume`; what flees from that is ended. False where some of it runs on."""
        for _ in range(ROUNDS):
            running = self._running()
            signalled(running, signal.SIGSTOP)
            self._suspended |= running
            if not running:
                return True
        return pursue(self._is_prey) and not self._running()

    def _running(self) -> set[int]:
        """Who is neither stopped nor ended: whose parent is stopped stays listed after its end."""
        return {process for process in self.members() - self._suspended if state(process) not in ENDED}

    def resume(self) -> None:
        """Let go on what `suspend` has stopped."""
        signalled(self._suspended, signal.SIGCONT)
        self._suspended = set()
