"""Energy per image by the GPU's own total, and the clocks and throttling around a sample."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from pipeline.devices.nvml import DeviceState
from pipeline.measure.clock import Clock
from pipeline.measure.environment import gpu_behind
from pipeline.measure.sampling import no_state, undisturbed
from pipeline.records.samples import Energy

REST_SECONDS = 1.5  # the device averages its power over up to one second
CALLS_BETWEEN_LOOKS = 10  # at the clock: a synchronisation after each call would let the device rest


class PowerMeter(Protocol):
    """What is read of a GPU; `pipeline.devices.nvml.Gpu` is one."""

    def joules(self) -> float | None:
        """Energy so far."""

    def watts(self) -> float | None:
        """Power now."""


def device_state(device: torch.device) -> Callable[[], DeviceState]:
    """Asks the device for its clock and throttling; on a CPU, for nothing."""
    gpu = gpu_behind(device)
    return gpu.state if gpu else no_state


def energy(
    call: Callable[[Any], Any],
    next_batch: Callable[[], Any],
    clock: Clock,
    seconds: float,
    images_per_call: int,
    meter: PowerMeter | None,
    sleep: Callable[[float], None] = time.sleep,
) -> Energy | None:
    """What calls for at least `seconds` take, after a rest that gives the idle power.

    The device's total moves some ten times a second, so five seconds give it to about 2 %.

    Returns:
        None where nothing counts energy: on a CPU, and on GPUs that don't.
    """
    if meter is None or meter.joules() is None:
        return None
    sleep(REST_SECONDS)
    idle, before, calls = meter.watts(), meter.joules(), 0
    start = clock.now()
    with undisturbed():
        while clock.now() - start < seconds:
            for _ in range(CALLS_BETWEEN_LOOKS):
                call(next_batch())
            clock.synchronize()
            calls += CALLS_BETWEEN_LOOKS
    taken, after = clock.now() - start, meter.joules()
    if idle is None or before is None or after is None:
        return None
    return Energy(joules=after - before, seconds=taken, images=calls * images_per_call, idle_watts=idle)
