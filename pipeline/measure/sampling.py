"""One sample: calls timed back to back, again where something compiled or allocated meanwhile.

How many samples there are, and when there are enough, is for `pipeline.orchestrate.interleave` to say.
"""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch

from pipeline.devices.nvml import DeviceState, throttle_reasons
from pipeline.measure.clock import Clock
from pipeline.measure.timers import time_calls
from pipeline.records.plan import Plan
from pipeline.records.samples import Sample

Batch = TypeVar("Batch")


def no_guards() -> tuple[int, ...]:
    """Guards of a stage that neither compiles nor allocates."""
    return ()


def no_state() -> DeviceState:
    """The state of a device without telemetry: nothing is known."""
    return DeviceState()


class Watch(NamedTuple):
    """What is watched around the timed calls of a sample.

    Attributes:
        guards: counters that must not grow within, such as compilations and device allocations.
        state: the device's clock and throttling, read before the untimed calls and after the timed ones.
    """

    guards: Callable[[], tuple[int, ...]] = no_guards
    state: Callable[[], DeviceState] = no_state


UNWATCHED = Watch()


def calls_per_sample(per_call_seconds: float, sample_seconds: float, min_calls: int) -> int:
    """The fewest calls that last `sample_seconds`, and at least `min_calls`."""
    return max(min_calls, math.ceil(sample_seconds / max(per_call_seconds, 1e-9)))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Neither gradients nor garbage collection within."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.inference_mode():
            yield
    finally:
        if collects:
            gc.enable()


def take_sample(
    call: Callable[[Batch], object],
    next_batch: Callable[[], Batch],
    calls: int,
    clock: Clock,
    plan: Plan,
    watch: Watch = UNWATCHED,
    run_in_calls: int = 0,
) -> Sample:
    """Time `calls` calls back to back between two device-wide synchronisations.

    Args:
        call: the stage.
        next_batch: gives the rotation's next input; called for every input before the clock is read.
        calls: how many calls are timed, after those that are not.
        clock: read before the first timed call and after the device has finished the last.
        plan: gives `sample_warmup_calls`, the least number of calls before the timed ones, and `most_retries`.
        watch: what is read around the calls. If a guard grows during the timed calls, the sample is taken
            again; `Sample.disturbed` says that one grew in the last of `most_retries`, too.
        run_in_calls: untimed calls that bring the device to full load; nothing rests between them and the timed ones.
    """
    retries, untimed = 0, max(plan.sample_warmup_calls, run_in_calls)
    while True:
        before = watch.state()
        disturbed, after, seconds, device_seconds = _timed(call, next_batch, calls, clock, untimed, watch)
        if not disturbed or retries == plan.most_retries:
            break
        retries += 1
    reasons = throttle_reasons(before, after, seconds * (untimed + calls) / calls)
    return Sample(calls, seconds, device_seconds, retries, disturbed, after.clock_mhz, reasons)


def _timed(
    call: Callable[[Batch], object],
    next_batch: Callable[[], Batch],
    calls: int,
    clock: Clock,
    untimed_calls: int,
    watch: Watch,
) -> tuple[bool, DeviceState, float, float | None]:
    """Whether a guard grew within the timed calls, the state after them, their wall seconds and device seconds."""
    warm_up = [next_batch() for _ in range(untimed_calls)]
    batches = [next_batch() for _ in range(calls)]
    with undisturbed():
        for batch in warm_up:
            call(batch)
        counted = watch.guards()  # while the device still works: a pause would let its clock rise
        clock.synchronize()
        seconds, device_seconds = time_calls(call, batches, clock)
        after, disturbed = watch.state(), watch.guards() != counted
    return disturbed, after, seconds, device_seconds
