"""The clock that every measurement reads: passed in, so that tests use a fake."""

from time import perf_counter  # itself: who puts another into its module deceives nobody here
from typing import Protocol

import torch


class Clock(Protocol):
    """Wall time, the device's own time, and the wait for the device."""

    def now(self) -> float:
        """Seconds since some fixed moment; never runs backwards."""

    def synchronize(self) -> None:
        """Wait for all work on the whole device, whatever stream it is on."""

    def begin(self) -> None:
        """Put the first mark into the current stream."""

    def end(self) -> None:
        """Put the second mark into the current stream."""

    def device_seconds(self) -> float | None:
        """Seconds between the marks, after `synchronize`; None on a device without a clock of its own."""


class TorchClock:
    """The clock of a torch device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[torch.cuda.Event] = []
        if device.type == "cuda":
            self._marks = [_event(), _event()]

    def now(self) -> float:
        """Seconds of the monotonic performance counter."""
        return perf_counter()

    def synchronize(self) -> None:
        """Wait for every stream of the device."""
        if self._marks:
            torch.cuda.synchronize(self._device)

    def begin(self) -> None:
        """Record the first event."""
        if self._marks:
            self._marks[0].record()

    def end(self) -> None:
        """Record the second event."""
        if self._marks:
            self._marks[1].record()

    def device_seconds(self) -> float | None:
        """Seconds between the two events; None on a CPU."""
        return self._marks[0].elapsed_time(self._marks[1]) / 1e3 if self._marks else None


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
