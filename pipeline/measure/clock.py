"""The clock that every measurement reads, passed in so that tests use a fake, and the time of some work by it."""

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TypeVar

import torch

BURSTS, BURST_SECONDS = 10, 0.03
MOST_CALLS = 2000  # of one burst
Input = TypeVar("Input")


class Clock:
    """Wall time, a torch device's own time, and the wait for the device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self._marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def now(self) -> float:
        """Seconds since some fixed moment; never runs backwards."""
        return perf_counter()

    def synchronize(self) -> None:
        """Wait for all work on the whole device, whatever stream it is on."""
        if self._marks:
            torch.cuda.synchronize(self._device)

    def begin(self) -> None:
        """Put the first mark into the current stream."""
        if self._marks:
            self._marks[0].record()

    def end(self) -> None:
        """Put the second mark into the current stream."""
        if self._marks:
            self._marks[1].record()

    def device_seconds(self) -> float | None:
        """Seconds between the marks, after `synchronize`; None on a CPU, which has no clock of its own."""
        return self._marks[0].elapsed_time(self._marks[1]) / 1e3 if self._marks else None


def time_calls(call: Callable[[Input], object], inputs: Iterable[Input], clock: Clock) -> tuple[float, float | None]:
    """Seconds of calls back to back, one for each input, until the device is done: the host's, and the device's own."""
    clock.begin()
    start = clock.now()
    for value in inputs:
        call(value)
    clock.end()
    clock.synchronize()
    return clock.now() - start, clock.device_seconds()


def best_burst_seconds(work: Callable[[int], object], clock: Clock) -> float:
    """Seconds of one call in the best of ten bursts: a peak is what was reached, not what was usual."""
    work(0)
    clock.synchronize()
    seconds, _ = time_calls(work, range(1), clock)
    repeats = max(1, min(MOST_CALLS, int(BURST_SECONDS / max(seconds, 1e-6))))
    bursts = [time_calls(work, range(repeats), clock) for _ in range(BURSTS)]
    return min((device_seconds or seconds) / repeats for seconds, device_seconds in bursts)
