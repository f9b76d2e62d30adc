"""One timed stretch of calls, and the two series of single calls."""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pipeline.config.plan import Plan
from pipeline.devices.nvml import DeviceState, throttle_reasons
from pipeline.measure.clock import Clock
from pipeline.records.samples import Sample


def no_guards() -> tuple[int, ...]:
    """Guards of a stage that neither compiles nor allocates."""
    return ()


def no_state() -> DeviceState:
    """The state of a device that says nothing of itself."""
    return DeviceState()


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
    call: Callable[[Any], Any],
    next_batch: Callable[[], Any],
    calls: int,
    clock: Clock,
    plan: Plan,
    guards: Callable[[], tuple[int, ...]] = no_guards,
    state: Callable[[], DeviceState] = no_state,
) -> Sample:
    """Time `calls` calls back to back between two device-wide synchronisations.

    Args:
        call: the stage.
        next_batch: gives the rotation's next input; drawn before the stamps.
        calls: how many.
        clock: read twice.
        plan: gives `sample_warmup_calls` and `most_retries`.
        guards: counters, such as compilations and device allocations. Where one grew during the settled calls the
            sample is measured again, at most `most_retries` times; `Sample.disturbed` says that one grew in the last
            retry, too.
        state: read before and after, outside the stamps.
    """
    retries = 0
    while True:
        before = state()
        counted, seconds, device_seconds = _timed(call, next_batch, calls, clock, plan.sample_warmup_calls, guards)
        after = state()
        disturbed = guards() != counted
        if not disturbed or retries == plan.most_retries:
            break
        retries += 1
    return Sample(
        calls=calls,
        seconds=seconds,
        device_seconds=device_seconds,
        retries=retries,
        disturbed=disturbed,
        clock_mhz=after.clock_mhz,
        throttle_reasons=throttle_reasons(before, after, seconds),
    )


def _timed(
    call: Callable[[Any], Any],
    next_batch: Callable[[], Any],
    calls: int,
    clock: Clock,
    sample_warmup_calls: int,
    guards: Callable[[], tuple[int, ...]],
) -> tuple[tuple[int, ...], float, float | None]:
    """The guards' counts at the start, wall seconds and device seconds."""
    settling = [next_batch() for _ in range(sample_warmup_calls)]
    batches = [next_batch() for _ in range(calls)]
    with undisturbed():
        for batch in settling:
            call(batch)
        clock.synchronize()
        counted = guards()
        clock.begin()
        start = clock.now()
        for batch in batches:
            call(batch)
        clock.end()
        clock.synchronize()
        seconds = clock.now() - start
    return counted, seconds, clock.device_seconds()


def take_latencies(call: Callable[[Any], Any], next_batch: Callable[[], Any], clock: Clock, plan: Plan) -> list[float]:
    """Seconds of single calls with a synchronisation after each: what one request waits, device to device.

    At most `latency_calls`, and none begins after `latency_seconds`; at least one.
    """
    series: list[float] = []
    with undisturbed():
        for _ in range(plan.sample_warmup_calls):
            call(next_batch())
        clock.synchronize()
        opened = clock.now()
        while len(series) < max(plan.latency_calls, 1) and (not series or clock.now() - opened < plan.latency_seconds):
            batch = next_batch()
            start = clock.now()
            call(batch)
            clock.synchronize()
            series.append(clock.now() - start)
    return series


def take_host_latencies(
    call: Callable[[Tensor], Tensor], batches: list[Tensor], clock: Clock, plan: Plan
) -> list[float]:
    """Seconds from a batch in the host's memory to its logits in the host's memory, pinned on a GPU.

    On a CPU the two boundaries are the same but for the copy into a buffer of the caller's.

    Args:
        call: the stage.
        batches: the rotation, on the device.
        clock: as for the other series.
        plan: as for the other series.
    """
    on_gpu = batches[0].is_cuda
    hosted = [batch.cpu().pin_memory() if on_gpu else batch.clone() for batch in batches]
    with torch.inference_mode():
        logits = call(batches[0])
    answer = torch.empty(logits.shape, dtype=logits.dtype, pin_memory=on_gpu)
    landing = torch.empty_like(batches[0])  # made here: a batch made in inference mode would have Dynamo compile again
    count = 0

    def next_hosted() -> Tensor:
        nonlocal count
        count += 1
        return hosted[count % len(hosted)]

    def there_and_back(batch: Tensor) -> None:
        landing.copy_(batch, non_blocking=True)
        answer.copy_(call(landing), non_blocking=True)

    return take_latencies(there_and_back, next_hosted, clock, plan)
