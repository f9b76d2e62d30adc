"""How much memory a stage takes, according to torch's allocator and to the device."""

import gc
import os
import resource
import sys
from collections.abc import Callable

import torch
from torch import nn

from pipeline.compiler.batch import Batch
from pipeline.measure.fingerprint import held_by
from pipeline.measure.torch_device import gpu_behind
from pipeline.records.samples import Memory


def device_allocations(device: torch.device) -> int:
    """How often torch has asked the device for memory so far; a sample in which it grows is measured again."""
    return int(torch.cuda.memory_stats(device).get("num_device_alloc", 0)) if device.type == "cuda" else 0


def context_bytes(device: torch.device) -> int | None:
    """What the process holds of the device before its first tensor; None where the device doesn't say."""
    if device.type != "cuda":
        return None
    torch.cuda.init()
    torch.cuda.synchronize(device)  # makes the context
    return process_bytes(device)


def process_bytes(device: torch.device) -> int | None:
    """What the process holds of the device now; None where the driver doesn't tell processes apart."""
    gpu = gpu_behind(device)
    return (gpu.processes() or {}).get(os.getpid()) if gpu else None


def measure(call: Callable[[Batch], object], batch: Batch, model: nn.Module, context: int | None) -> Memory:
    """Peak of one call, and the process as it stands after it.

    What torch's allocator still keeps of the build, for nobody, goes back to the device first: candidates that lost are
    no part of a service. Memory that a stage takes past torch's allocator (a session of ONNX Runtime) shows in
    `process_bytes` alone.

    Args:
        call: the stage.
        batch: the inputs of one call.
        model: the workload's, for the weights as they come in fp32.
        context: of `context_bytes`.
    """
    allocated = reserved = None
    if batch.is_cuda:
        torch.cuda.synchronize(batch.device)
        gc.collect()  # a CUDA graph that nobody has any more keeps its memory until then
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


def host_peak_bytes() -> int:
    """Peak resident memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
