"""The torch device of a worker: opened or refused, and what it can do."""

import torch

from pipeline.devices.accelerators import DeviceError
from pipeline.devices.host import processors
from pipeline.devices.nvml import Gpu, gpu_of


def open_device(kind: str) -> torch.device:
    """Return the torch device of a kind that `choose_device` gave; DeviceError for a ROCm build."""
    if kind == "cuda" and torch.version.hip is not None:
        raise DeviceError(
            f"device={kind}: this torch is a ROCm build (HIP {torch.version.hip}), and this version runs only NVIDIA's "
            "GPUs and CPUs; device=cpu runs on the CPU"
        )
    return torch.device(kind)


def keep_to_quota() -> None:
    """Have torch compute with no more threads than a quota of processor time keeps busy: it counts processors alone."""
    if (most := processors()) < torch.get_num_threads():
        torch.set_num_threads(most)


def has_compute(device: torch.device, least: tuple[int, int]) -> bool:
    """Return whether it is an NVIDIA GPU of at least this compute capability; an MI300 (gfx 9.4) is no Hopper."""
    is_nvidia = device.type == "cuda" and torch.version.hip is None
    return is_nvidia and torch.cuda.get_device_capability(device) >= least


def gpu_behind(device: torch.device) -> Gpu | None:
    """NVML's view of a torch device; None on a CPU, and where NVML doesn't know the device."""
    return gpu_of(str(torch.cuda.get_device_properties(device).uuid)) if device.type == "cuda" else None


def cache_bytes(device: torch.device) -> int | None:
    """Return the size of the GPU's last cache, which a rotation of inputs must exceed; None on a CPU."""
    return torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else None
