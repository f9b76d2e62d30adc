"""How much memory a stage takes: as torch's allocator sees it, and as the device sees the process."""

import os
import resource
import sys
from collections.abc import Callable
from typing import Any

import torch

from pipeline.measure.nvml import Gpu
from pipeline.records import Memory


def device_allocations(device: torch.device) -> int:
    """How often torch has asked the device for memory so far; a slice in which it grows is measured again."""
    return int(torch.cuda.memory_stats(device).get("num_device_alloc", 0)) if device.type == "cuda" else 0


class MemoryMeter:
    """Reads one process's memory; made before its first tensor.

    Where the driver doesn't tell processes apart (in a container), the process's share is what the whole device holds
    more than before the process began: right as long as the other worker rests, as it does.
    """

    def __init__(self, device: torch.device, gpu: Gpu | None) -> None:
        self._device = device
        self._gpu = gpu
        self._before = gpu.used_bytes() if gpu else None
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]  # torch gives it no types
            torch.cuda.synchronize(device)  # makes the context
        self.context_bytes = self.process_bytes()

    def process_bytes(self) -> int | None:
        """What the process holds of the device now; None where the device doesn't say."""
        if self._gpu is None:
            return None
        own = (self._gpu.processes() or {}).get(os.getpid())
        if own is not None:
            return own
        now = self._gpu.used_bytes()
        return None if now is None or self._before is None else now - self._before

    def read(self, call: Callable[[Any], Any], batch: Any, weights_bytes: int) -> Memory:
        """Peak of one call, and the process as it stands after it.

        Memory that a stage takes past torch's allocator (a session of ONNX Runtime) shows in `process_bytes` alone.
        """
        allocated = reserved = None
        with torch.inference_mode():
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
                torch.cuda.reset_peak_memory_stats(self._device)
                call(batch)
                torch.cuda.synchronize(self._device)
                allocated = torch.cuda.max_memory_allocated(self._device)
                reserved = torch.cuda.max_memory_reserved(self._device)
        return Memory(
            allocated_peak_bytes=allocated,
            reserved_peak_bytes=reserved,
            process_bytes=self.process_bytes(),
            context_bytes=self.context_bytes,
            weights_bytes=weights_bytes,
            host_peak_bytes=host_peak_bytes(),
        )


def host_peak_bytes() -> int:
    """Peak resident memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
