"""How many processors one side uses while it is timed, and how many all others do: a neighbour in step with one side.

Whatever works while the baseline is timed, and rests while the stage is, makes the stage look fast: what the system
writes back for it, or a program that it spoke to. It is no process of the stage's, so that none can be stopped.
"""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pipeline.orchestrate.offspring import PROC
from pipeline.records.run_record import RunWarning

TICKS = os.sysconf("SC_CLK_TCK")  # a second
BUSY = (0, 1, 2, 5, 6)  # of /proc/stat's first line: user, nice, system, interrupts of both kinds
LEAST_SECONDS = 1.0  # of a side's samples, as the system counts in hundredths
MORE_OTHERS, MORE_SHARE = 0.25, 0.1  # processors, and share of the machine's, that others may use more beside one side
MORE_OWN = 0.5  # processors, beyond those that the run gives


class Use(NamedTuple):
    """Seconds of processors that one side and all others used, over so many of wall time."""

    wall: float = 0.0
    own: float = 0.0
    others: float = 0.0

    def further(self, more: "Use") -> "Use":
        """Both together."""
        return Use(self.wall + more.wall, self.own + more.own, self.others + more.others)

    def since(self, before: "Use") -> "Use":
        """What was added to that of before."""
        return Use(self.wall - before.wall, self.own - before.own, self.others - before.others)


def now(processes: Iterable[int], proc: Path = PROC) -> Use | None:
    """The counts as they are, of these processes and of all others; None where the system keeps none."""
    try:
        fields = (proc / "stat").read_text().split(maxsplit=11)[1:9]
        busy = sum(int(fields[index]) for index in BUSY) / TICKS
    except (OSError, ValueError, IndexError):
        return None
    own = 0.0
    for process in processes:
        with suppress(OSError, ValueError):  # it ended meanwhile
            told = (proc / str(process) / "stat").read_text().rpartition(")")[2].split()
            own += sum(map(int, told[11:15])) / TICKS  # its own and its ended children's, user and system
    return Use(time.monotonic(), own, busy - own)


def between(before: Use | None, after: Use | None) -> Use:
    """What was used meanwhile; nothing where nobody says."""
    if before is None or after is None:
        return Use()
    wall, own = after.wall - before.wall, max(0.0, after.own - before.own)
    return Use(wall, own, max(0.0, after.others - before.others))


def taken_share(use: Use, threads: int) -> float | None:
    """The share of the processors for so many threads that others left the run too few of; None where nobody counted.

    What others used beside processors that the run leaves idle is no loss to it.
    """
    if use.wall < LEAST_SECONDS or not use.others + use.own:
        return None
    short = use.others / use.wall + threads - (os.cpu_count() or threads)
    return min(1.0, max(0.0, short / threads))


def warning(names: tuple[str, str], uses: tuple[Use, Use], threads: int | None) -> RunWarning | None:
    """What a reader must know of what both sides of a pair had of the processors; None where nothing stands out.

    Args:
        names: of the baseline and of the stage.
        uses: of either, over all of its samples.
        threads: that the run gives on a CPU; None where it leaves that open.
    """
    if min(use.wall for use in uses) < LEAST_SECONDS:
        return None
    for name, use in zip(names, uses, strict=True):
        if threads is not None and use.own > (threads + MORE_OWN) * use.wall:
            text = f"{name} used {use.own / use.wall:.1f} processors, and threads={threads}"
            return RunWarning("unfair", text, "its ratio is to a baseline that kept to that: leave threads out")
    others = [use.others / use.wall for use in uses]
    if abs(others[0] - others[1]) <= max(MORE_OTHERS, MORE_SHARE * (os.cpu_count() or 1)):
        return None
    said = (f"{used:.1f} processors while {name} was timed" for name, used in zip(names, others, strict=True))
    text = f"other programs used {', and '.join(said)}"
    return RunWarning("busy processor", text, "what works beside one side alone moves the ratio: find it and run again")
