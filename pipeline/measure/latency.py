"""Single calls with a synchronisation after each: what one request waits."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import TypeVar

import torch
from torch import Tensor

from pipeline.compiler.batch import Batch
from pipeline.measure.clock import Clock
from pipeline.measure.sampling import undisturbed
from pipeline.records.plan import Plan

STEADY_SHARE = 0.02  # by which the medians of two windows may differ
MOST_CALLS = 1_000_000  # of a window, which ends by time
Input = TypeVar("Input")


def page_locked(part: Tensor) -> Tensor:
    """Return a copy of a CPU tensor of any shape in page-locked memory."""
    # torch's own `pin_memory` first asks a backend that was registered with it, and torchax registers JAX without what
    # is asked for.
    try:
        return part.pin_memory()
    except RuntimeError:
        runtime, held = torch.cuda.cudart(), part.clone()
        torch.cuda.check_error(runtime.cudaHostRegister(held.data_ptr(), held.nbytes, 0))
        weakref.finalize(held, runtime.cudaHostUnregister, held.data_ptr())
        return held


def take_latencies(
    call: Callable[[Input], object], next_batch: Callable[[], Input], clock: Clock, plan: Plan
) -> list[float]:
    """Seconds of each of at most `plan.latency_calls` calls, from a batch on the device to logits on the device.

    At least one call is timed, and none begins later than `plan.latency_seconds` after the first.
    """
    latencies: list[float] = []
    with undisturbed():
        for _ in range(plan.sample_warmup_calls):
            call(next_batch())
        clock.synchronize()
        opened = clock.now()
        while len(latencies) < max(plan.latency_calls, 1) and (
            not latencies or clock.now() - opened < plan.latency_seconds
        ):
            batch = next_batch()
            start = clock.now()
            call(batch)
            clock.synchronize()
            latencies.append(clock.now() - start)
    return latencies


def run_in(call: Callable[[Input], object], next_batch: Callable[[], Input], clock: Clock, plan: Plan) -> bool:
    """Single calls, not kept, until the medians of two windows in a row agree: whether they did within the limit."""
    # A GPU that has rested gives its first calls, some 75 ms on an H200, a clock that it can't keep.
    opened, before = clock.now(), 0.0
    while clock.now() - opened < plan.gpu_latency_run_in_seconds:
        window = replace(plan, latency_seconds=plan.warmup_window_seconds, latency_calls=MOST_CALLS)
        now = median(take_latencies(call, next_batch, clock, window))
        if before and abs(now / before - 1) <= STEADY_SHARE:
            return True
        before = now
    return False


def take_host_latencies(call: Callable[[Batch], Tensor], batches: list[Batch], clock: Clock, plan: Plan) -> list[float]:
    """Seconds of each call from a batch in the host's memory to its logits in the host's memory, pinned on a GPU."""
    on_gpu = batches[0].is_cuda
    on_host = [batch.mapped(lambda part: page_locked(part.cpu()) if on_gpu else part.clone()) for batch in batches]
    with torch.inference_mode():
        logits = call(batches[0])
    answer = torch.empty(logits.shape, dtype=logits.dtype)
    answer = page_locked(answer) if on_gpu else answer
    # Made outside of inference mode: for a batch made in it, Dynamo would compile again.
    on_device = batches[0].mapped(torch.empty_like)
    count = 0

    def next_on_host() -> Batch:
        nonlocal count
        count += 1
        return on_host[count % len(on_host)]

    def there_and_back(batch: Batch) -> None:
        on_device.copy_(batch)
        answer.copy_(call(on_device), non_blocking=True)

    return take_latencies(there_and_back, next_on_host, clock, plan)
