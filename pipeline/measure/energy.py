"""Energy per image by the GPU's own total, and the clocks and throttling around a sample."""

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

from pipeline.devices.nvml import DeviceState
from pipeline.measure.clock import Clock
from pipeline.measure.sampling import no_state, undisturbed
from pipeline.measure.torch_device import gpu_behind
from pipeline.records.samples import Energy

REST_SECONDS = 1.5  # the device averages its power over up to one second
# Of the clock: the device idles for a moment after each, as it waits for the host.
CALLS_BETWEEN_READINGS, SECONDS_BETWEEN_READINGS = 10, 0.1

Batch = TypeVar("Batch")


class PowerMeter(Protocol):
    """What `energy` reads of a GPU; `pipeline.devices.nvml.Gpu` is one."""

    def joules(self) -> float | None:
        """Joules so far, from any start."""

    def watts(self) -> float | None:
        """Watts now."""


def device_state(device: torch.device) -> Callable[[], DeviceState]:
    """A function that reads the device's clock and throttling; on a CPU, one that knows nothing."""
    gpu = gpu_behind(device)
    return gpu.state if gpu else no_state


def energy(
    call: Callable[[Batch], object],
    next_batch: Callable[[], Batch],
    clock: Clock,
    seconds: float,
    images_per_call: int,
    meter: PowerMeter | None,
    sleep: Callable[[float], None] = time.sleep,
) -> Energy | None:
    """Joules of calls for at least `seconds`, after a pause in which the idle power is read.

    The device updates its total some ten times a second, so five seconds give it to about 2 %.

    Returns:
        None where nothing counts energy: on a CPU, and on GPUs that don't.
    """
    if meter is None or meter.joules() is None:
        return None
    sleep(REST_SECONDS)
    idle, before, calls, more = meter.watts(), meter.joules(), 0, CALLS_BETWEEN_READINGS
    start, taken = clock.now(), 0.0
    with undisturbed():
        while taken < seconds:
            for _ in range(more):
                call(next_batch())
            clock.synchronize()
            calls, taken = calls + more, clock.now() - start
            more = max(more, int(SECONDS_BETWEEN_READINGS * calls / taken)) if taken else more
    after = meter.joules()
    if idle is None or before is None or after is None:
        return None
    return Energy(joules=after - before, seconds=taken, images=calls * images_per_call, idle_watts=idle)
