"""How many processors this process may use: its affinity, and what control groups leave it (a container's `--cpus`)."""

import math
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def processors() -> int:
    """How many this process may use: the machine's, or as many as `taskset`, a container or a scheduler leaves it.

    A quota of time, such as 1.5 processors', counts as the processors that it keeps busy in part: two.
    """
    quota = cpu_quota()
    return seen_processors() if quota is None else min(seen_processors(), max(1, math.ceil(quota)))


def seen_processors() -> int:
    """How many the process may run on, as torch counts them: on none of a quota of time."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def cpu_quota(root: Path = ROOT, own: Path = OWN) -> float | None:
    """The processors' worth of time that this process may take: the least of its groups' quotas; None without one.

    Version 2 has it in `cpu.max`, "200000 100000" or "max 100000"; version 1 in `cpu.cfs_quota_us`, -1 for none, and
    `cpu.cfs_period_us` (the kernel's cgroup-v2.rst and sched-bwc.rst).

    Args:
        root: where the groups are mounted.
        own: which this process is in, as cgroups(7) has it.
    """
    found = [quota for folder in _groups(root, own) if (quota := _quota(folder)) is not None]
    return min(found, default=None)


def _groups(root: Path, own: Path) -> Iterator[Path]:
    """The folders of the groups, and of those around them: a container sees its own as the outermost, by no name."""
    lines = []
    with suppress(OSError):
        lines = own.read_text().splitlines()
    for line in [*lines, "0::/", "0:cpu:/"]:
        _, kinds, path = [*line.split(":", 2), "", ""][:3]
        if kinds and "cpu" not in kinds.split(","):
            continue
        inner = Path(path.lstrip("/")) if ".." not in path else Path()
        for mounted in {root / kinds, root / "cpu"} if kinds else {root, root / "unified"}:
            yield from (mounted / part for part in (inner, *inner.parents))


def _quota(folder: Path) -> float | None:
    """One group's; None where it has none, or isn't there."""
    with suppress(OSError, ValueError):
        quota, period = map(int, (folder / "cpu.max").read_text().split())  # "max" is no number
        return quota / period
    with suppress(OSError, ValueError):
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        return quota / int((folder / "cpu.cfs_period_us").read_text()) if quota > 0 else None
    return None
