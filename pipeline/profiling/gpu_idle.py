"""Whether a stage that was given a GPU works on it, seen in its profile: a CPU's work, or none, leaves it idle."""

from pipeline.records.chrome_trace import DRIVER, TraceEvent, length, of

LEAST_BUSY_SHARE = 0.02  # of a call; a net of tiny layers that waits for Python keeps a GPU busy for a tenth


def idle_reason(events: list[TraceEvent], calls: int, seconds_per_call: float) -> str:
    """Why a stage did no work on the GPU, in one line; empty where it did, and where no profiler saw the driver.

    Copies and fills don't count: whoever computes on the CPU makes them, too.

    Args:
        events: of the stage's profile.
        calls: how many calls it holds.
        seconds_per_call: as timed, without the profiler.
    """
    if not of(events, *DRIVER):
        return ""
    busy = length(of(events, "kernel")) / calls
    if busy > 0 and busy >= LEAST_BUSY_SHARE * seconds_per_call:
        return ""
    seen = f"its kernels ran for {busy * 1e6:.3g} µs of the {seconds_per_call * 1e6:.3g} µs that a call takes"
    return f"did no work on the GPU: {seen}"
