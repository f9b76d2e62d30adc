"""Energy per image, by the difference of the GPU's own total."""

import time
from collections.abc import Callable
from typing import Any, Protocol

from pipeline.measure.clock import Clock
from pipeline.measure.slices import undisturbed
from pipeline.records import Energy

REST_SECONDS = 1.5  # the device averages its power over up to one second


class PowerMeter(Protocol):
    """What is read of a GPU; `pipeline.measure.nvml.Gpu` is one."""

    def joules(self) -> float | None:
        """Energy so far."""

    def watts(self) -> float | None:
        """Power now."""


def idle_watts(meter: PowerMeter | None, sleep: Callable[[float], None] = time.sleep) -> float | None:
    """Power after a rest with nothing to do; None on a CPU. To be asked before the stage's first call."""
    if meter is None:
        return None
    sleep(REST_SECONDS)
    return meter.watts()


def measure_energy(
    call: Callable[[Any], Any],
    next_batch: Callable[[], Any],
    calls: int,
    images_per_call: int,
    clock: Clock,
    seconds: float,
    meter: PowerMeter | None,
    idle: float | None,
) -> Energy | None:
    """Slices of `calls` calls for at least `seconds`; None where nothing counts energy, or where `seconds` is 0."""
    before = meter.joules() if meter and seconds else None
    if meter is None or before is None or idle is None:
        return None
    done = 0
    with undisturbed():
        clock.synchronize()
        before = meter.joules()
        start = clock.now()
        while clock.now() - start < seconds:
            for _ in range(calls):
                call(next_batch())
            clock.synchronize()
            done += calls
        taken = clock.now() - start
    after = meter.joules()
    assert before is not None
    assert after is not None
    return Energy(joules=after - before, seconds=taken, images=done * images_per_call, idle_watts=idle)
