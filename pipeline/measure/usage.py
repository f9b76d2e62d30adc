"""Memory and energy of a stage, by torch's allocator, the process and the GPU's counters."""

import gc
import os
import time
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from pipeline.compiler.batch import Batch
from pipeline.devices.host import host_peak_bytes
from pipeline.devices.nvml import Gpu
from pipeline.measure.clock import Clock
from pipeline.measure.rotation import held_by
from pipeline.measure.sampling import undisturbed
from pipeline.measure.torch_device import gpu_behind
from pipeline.records.samples import Energy, Memory

REST_SECONDS = 1.5  # the device averages its power over up to one second
# The device idles for a moment after each reading of the clock.
CALLS_BETWEEN_READINGS, SECONDS_BETWEEN_READINGS = 10, 0.1
Input = TypeVar("Input")


def energy(
    call: Callable[[Input], object], next_batch: Callable[[], Input], clock: Clock, seconds: float,
    images_per_call: int, meter: Gpu | None, *, sleep: Callable[[float], None] = time.sleep,
) -> Energy | None:  # fmt: skip
    """Joules of calls for at least `seconds`, after a pause in which the idle power is read."""
    # The device updates its total some ten times a second, so five seconds give it to about 2 %.
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


def device_allocations(device: torch.device) -> int:
    """Return how often torch has allocated device memory; a sample in which it grows is measured again."""
    return int(torch.cuda.memory_stats(device).get("num_device_alloc", 0)) if device.type == "cuda" else 0


def context_bytes(device: torch.device) -> int | None:
    """Return the GPU memory of the process before its first tensor; None where the driver doesn't report it."""
    if device.type != "cuda":
        return None
    torch.cuda.init()
    torch.cuda.synchronize(device)  # makes the context
    return process_bytes(device)


def process_bytes(device: torch.device) -> int | None:
    """Return the GPU memory of the process now; None where the driver doesn't report it by process."""
    gpu = gpu_behind(device)
    return (gpu.processes() or {}).get(os.getpid()) if gpu else None


def measure(call: Callable[[Batch], object], batch: Batch, model: nn.Module, context: int | None) -> Memory:
    """Peak of one call, and the process as it stands after it."""
    # What torch's allocator keeps of the build goes back to the device first. Memory that a stage takes past that
    # allocator shows in `process_bytes` alone.
    allocated = reserved = None
    if batch.is_cuda:
        torch.cuda.synchronize(batch.device)
        gc.collect()  # an unreferenced CUDA graph keeps its memory until then
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(batch.device)
        with torch.inference_mode():
            call(batch)
        torch.cuda.synchronize(batch.device)
        allocated = torch.cuda.max_memory_allocated(batch.device)
        reserved = torch.cuda.max_memory_reserved(batch.device)
    return Memory(
        allocated_peak_bytes=allocated,
        reserved_peak_bytes=reserved,
        process_bytes=process_bytes(batch.device),
        context_bytes=context,
        weights_bytes=sum(part.numel() * part.element_size() for part in held_by(model).values()),
        host_peak_bytes=host_peak_bytes(),
    )
