"""The number of threads of a run on a CPU."""

from pipeline.config.request_error import RequestError
from pipeline.devices.host import cpu_quota, processors, seen_processors
from pipeline.errors import plural
from pipeline.records.run_record import RunWarning


def check_threads(threads: int | None) -> None:
    """Raise RequestError if there are more threads than processors: they would wait for each other."""
    if threads is not None and threads > (most := processors()):
        found = f"{plural(most, 'processor')}{of_a_quota()}"
        raise RequestError(
            f"threads={threads}: this program may use {found}; expected at most {most}, or null for torch's own choice"
        )


def of_a_quota() -> str:
    """Return a clause on a container's CPU quota, if that is what limits the processors; else an empty text."""
    quota = cpu_quota()
    there = seen_processors()
    return f" of {there}, by its container's CPU quota of {quota:.4g}" if quota and processors() < there else ""


def quota_warning() -> RunWarning | None:
    """Return the warning of a run under a CPU quota; None without a quota."""
    if not (said := of_a_quota()):
        return None
    return RunWarning(
        "processor quota",
        f"this program may use {plural(processors(), 'processor')}{said}, and takes as many threads",
        "a quota pauses all threads once it is used up, which lengthens single calls; assign processors instead "
        "(docker --cpuset-cpus, taskset)",
    )
