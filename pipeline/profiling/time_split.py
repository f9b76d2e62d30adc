"""Where the wall time of a profiled call went: interpreter, framework, launches, waiting, GPU."""

from pipeline.records.chrome_trace import CALL, DRIVER, GPU_WORK, TraceEvent, length, of
from pipeline.records.diagnostics import TimeSplit

STARTS_WORK = ("Launch", "Memcpy", "Memset")  # in the names of the driver's calls
WAITS = "Synchronize"


def split(events: list[TraceEvent], calls: int) -> TimeSplit | None:
    """The split of one call, the mean of `calls`; None without annotations of the calls.

    What the host does is told apart by what its thread is inside of: a call of the driver that starts work, another
    operator of the framework, or neither, which is the interpreter with what the caller's own code does. All of it
    under the profiler, which makes the host slower and leaves the kernels alone.
    """
    whole = [event for event in of(events, "user_annotation") if event.name == CALL]
    if not whole:
        return None
    gpu = of(events, *GPU_WORK)
    threads = {event.thread for event in whole}
    driver = [event for event in of(events, *DRIVER) if event.thread in threads]
    starts = [event for event in driver if any(word in event.name for word in STARTS_WORK)]
    waits = [event for event in driver if WAITS in event.name]
    operators = [event for event in of(events, "cpu_op") if event.thread in threads]
    inside = _within(operators + driver, whole)
    host, launch = length(whole), length(starts)
    wall = (max(event.end_us for event in whole + gpu) - min(event.start_us for event in whole)) / 1e6
    return TimeSplit(
        wall_seconds=wall / calls,
        device_seconds=length(gpu) / calls if gpu else None,
        launch_seconds=launch / calls,
        framework_seconds=max(0.0, length(inside) - launch) / calls,
        interpreter_seconds=max(0.0, host - length(inside)) / calls,
        waiting_seconds=length(waits) / calls,
    )


def _within(events: list[TraceEvent], whole: list[TraceEvent]) -> list[TraceEvent]:
    begin, stop = min(event.start_us for event in whole), max(event.end_us for event in whole)
    return [event for event in events if begin <= event.start_us < stop]
