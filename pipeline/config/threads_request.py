"""How many threads a run on a CPU may have."""

import os
import re
from collections.abc import Mapping

from pipeline.config.request_error import RequestError
from pipeline.devices.host import cpu_quota, processors, seen_processors
from pipeline.records.run_record import RunWarning

OMP = "OMP_NUM_THREADS"
NUMBER = r"\s*\+?0*[1-9]\d{0,8}\s*"
TAKEN_BY_OMP = re.compile(f"{NUMBER}(,{NUMBER})*")  # a number, or one for each level of nested threads


def omp_note(environment: Mapping[str, str] = os.environ) -> str:
    """A line where libgomp takes nothing of its variable, and says so in the workers' logs alone; empty else.

    Args:
        environment: variables and their values.
    """
    value = environment.get(OMP)
    if value is None or TAKEN_BY_OMP.fullmatch(value):
        return ""
    return f"note: {OMP}={value}: expected an integer ≥ 1; it is as if it weren't set, and threads=N asks for a number"


def check_threads(threads: int | None) -> None:
    """That each thread has a processor: more of them wait for each other, a thousand on two processors for minutes.

    Raises:
        RequestError: there are fewer processors.
    """
    if threads is not None and threads > (most := processors()):
        found = f"{counted(most)}{of_a_quota()}"
        raise RequestError(
            f"threads={threads}: this program may use {found}; expected at most {most}, or null for torch's own choice"
        )


def counted(number: int) -> str:
    """So many processors, in words."""
    return f"{number} processor{'' if number == 1 else 's'}"


def of_a_quota() -> str:
    """A clause that says whose number of processors it is, where it is that of a quota of time; else empty."""
    quota = cpu_quota()
    there = seen_processors()
    return f" of {there}, by its container's CPU quota of {quota:.4g}" if quota and processors() < there else ""


def quota_warning() -> RunWarning | None:
    """What a reader must know of a run on a CPU whose time is rationed; None where none is."""
    if not (said := of_a_quota()):
        return None
    return RunWarning(
        "processor quota",
        f"this program may use {counted(processors())}{said}, and takes as many threads",
        "a quota stops all threads until its next period where they have used it up, which is seen in single calls; "
        "a set of processors (docker's --cpuset-cpus, taskset) doesn't",
    )
