"""Of two workers that are timed interleaved one runs, and the other one is stopped with all that it has started.

A stage could otherwise slow the other one, and look the faster for it: by a thread or a child at work while that is
timed, or by the processors and priorities that any process may give another one of its user.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from pipeline.orchestrate import processor_use
from pipeline.orchestrate.audit import Audited
from pipeline.orchestrate.offspring import PROC
from pipeline.orchestrate.worker_process import WorkerGone, WorkerProcess
from pipeline.protocol import Audit
from pipeline.records.samples import Sample


class InterleavedWorker:
    """One of the two, and the other one, which is stopped while it is timed.

    Attributes:
        name: of its stage.
        use: of processors, over all of its samples.
    """

    def __init__(self, worker: WorkerProcess, other: WorkerProcess) -> None:
        self.name = worker.name
        self.use = processor_use.Use()
        self._worker, self._other = worker, other

    def take(self) -> WorkerProcess:
        """The worker, running while the other one is stopped.

        Raises:
            WorkerGone: it was ended while it waited, and did nothing by which it could have ended; or the other one
                starts processes that can't be stopped.
        """
        if not self._worker.alive:
            raise WorkerGone("killed", f"{self._worker.death()[1]} while it waited for its turn")
        self._worker.resume()
        if not self._other.suspend():
            raise WorkerGone("broken contract", f"{self._other.name} starts processes faster than they can be stopped")
        return self._worker

    def sample(self) -> Sample:
        """One timed sample, taken now.

        Raises:
            WorkerGone: as `take` and `WorkerProcess.sample`.
        """
        (taken,), used = counted_samples(self.take(), 1)
        self.use = self.use.further(used)
        return taken

    def audit(self, asked: Audit) -> Audited:
        """Answers to drawn pictures; errors as of `sample`."""
        return self.take().audit(asked)


def counted_samples(worker: WorkerProcess, count: int) -> tuple[list[Sample], processor_use.Use]:
    """So many timed samples, taken now, and the processors that were used meanwhile.

    Raises:
        WorkerGone: as `WorkerProcess.sample`.
    """
    before = processor_use.now(worker.processes())
    taken = [worker.sample() for _ in range(count)]
    return taken, processor_use.between(before, processor_use.now(worker.processes()))


# Limits, the niceness of its session, its rank when memory runs out, its control group; and in "status", of much else,
# whoever traces it, and so may write into its memory.
TOLD = ("limits", "autogroup", "oom_score_adj", "cgroup")
TRACED = "TracerPid"


class Conditions(NamedTuple):
    """What a process is allowed of the machine, over all its threads."""

    processors: frozenset[int]
    niceness: frozenset[int]
    scheduling: frozenset[int]
    told: frozenset[str] = frozenset()  # what the system tells of it in `TOLD`


def conditions_of(process: int, proc: Path = PROC) -> Conditions | None:
    """Of a process; None where the system doesn't say."""
    processors, niceness, scheduling = set(), set(), set()
    with suppress(OSError):
        for task in (proc / str(process) / "task").iterdir():
            with suppress(ProcessLookupError):  # a thread that has ended meanwhile
                processors |= os.sched_getaffinity(int(task.name))
                niceness.add(os.getpriority(os.PRIO_PROCESS, int(task.name)))
                scheduling.add(os.sched_getscheduler(int(task.name)))
    told = frozenset(told_of(proc / str(process)))
    found = Conditions(frozenset(processors), frozenset(niceness), frozenset(scheduling), told)
    return found if processors else None


def told_of(process: Path) -> Iterator[str]:
    """The lines of `TOLD`, each behind its file's name, and who traces the process."""
    for name in (*TOLD, "status"):
        with suppress(OSError, ValueError):
            for line in (process / name).read_text().splitlines():
                if name != "status" or line.startswith(TRACED):
                    yield f"{name}: {' '.join(line.split())}"


def changed(before: Conditions | None, after: Conditions | None) -> str:
    """What differs, in a clause; empty where nothing does, or where nobody says."""
    if before is None or after is None:
        return ""
    for name, old, new in (
        ("processors", before.processors, after.processors),
        ("niceness", before.niceness, after.niceness),
        ("scheduling", before.scheduling, after.scheduling),
    ):
        if old != new:
            return f"{name} {sorted(old)} → {sorted(new)}"
    if before.told != after.told:
        return f"{', '.join(sorted(before.told - after.told))} → {', '.join(sorted(after.told - before.told))}"
    return ""


def give_back(before: Conditions | None) -> None:
    """Give this process's threads the processors and priorities of before, so far as the system lets it."""
    if before is None:
        return
    for task in (PROC / "self" / "task").iterdir():
        with suppress(OSError):
            os.sched_setaffinity(int(task.name), before.processors)
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(task.name), min(before.niceness))
    for line in before.told:
        if line.startswith("autogroup: "):  # without it the whole session, and so all that is started, may starve
            with suppress(OSError):
                (PROC / "self" / "autogroup").write_text(line.split()[-1])


@contextmanager
def interleaved(
    first: WorkerProcess, second: WorkerProcess, as_started: Conditions | None = None
) -> Iterator[tuple[InterleavedWorker, InterleavedWorker]]:
    """Both, interleaved: each sample of one begins by stopping the other; both run again afterwards.

    Args:
        first: whose times the second one's are compared with.
        second: the other one.
        as_started: the first one's conditions before the second one was started, which may have changed them in its
            build; None: as they are now.

    Raises:
        WorkerGone: the first, whose times the second is compared with, was given other processors or another priority;
            it is stopped, as its times are worth nothing now.
    """
    before = as_started or conditions_of(first.process_id)
    try:
        yield InterleavedWorker(first, second), InterleavedWorker(second, first)
        if first.alive and (difference := changed(before, conditions_of(first.process_id))):
            first.stop()
            raise WorkerGone("broken contract", f"{first.name}'s worker was given other conditions: {difference}")
    finally:
        for worker in (first, second):
            worker.resume()
