"""How long some work takes: one pass over inputs, or the best of several bursts."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from pipeline.measure.clock import Clock

BURSTS, BURST_SECONDS = 10, 0.03
MOST_CALLS = 2000  # of one burst

Input = TypeVar("Input")


def time_calls(call: Callable[[Input], object], inputs: Iterable[Input], clock: Clock) -> tuple[float, float | None]:
    """Seconds of calls back to back, one for each input, until the device is done: the host's, and the device's own.

    The device must be at rest; the second figure is None where it has no clock.
    """
    clock.begin()
    start = clock.now()
    for value in inputs:
        call(value)
    clock.end()
    clock.synchronize()
    return clock.now() - start, clock.device_seconds()


def best_burst_seconds(work: Callable[[int], object], clock: Clock) -> float:
    """Seconds of one call in the best of ten bursts: a peak is what was reached, not what was usual.

    The device's own time counts where it has a clock. Two calls come first; the second one's time sets the number of
    calls in a burst.

    Args:
        work: the call; it ignores its argument.
        clock: of the device.
    """
    work(0)
    clock.synchronize()
    seconds, _ = time_calls(work, range(1), clock)
    repeats = max(1, min(MOST_CALLS, int(BURST_SECONDS / max(seconds, 1e-6))))
    return min(_per_call(work, repeats, clock) for _ in range(BURSTS))


def _per_call(work: Callable[[int], object], repeats: int, clock: Clock) -> float:
    seconds, device_seconds = time_calls(work, range(repeats), clock)
    return (device_seconds or seconds) / repeats
