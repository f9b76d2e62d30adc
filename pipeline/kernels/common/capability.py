"""What a GPU must have for a kernel of this room to run on it."""

import torch

from pipeline.devices.accelerator import FP8
from pipeline.devices.kinds import Vendor

# Compute capability 9.0 brought the bulk tensor copy (TMA) that every convolution here loads its window with.
TMA = (9, 0)


def supported(capability: tuple[int, int], dtype: torch.dtype, vendor: Vendor = "nvidia") -> str | None:
    """Why kernels of this room can't run in `dtype` on a GPU of this compute capability, or None where they can.

    Another vendor's pair of numbers is no compute capability: torch gives (9, 4) for AMD's MI300.
    """
    if vendor != "nvidia":
        return f"the kernels are written for NVIDIA's GPUs, and this one's vendor is {vendor}"
    name = f"compute capability {capability[0]}.{capability[1]}"
    if dtype not in (torch.float16, torch.float8_e4m3fn):
        return f"{dtype} has no kernel here: float16 and float8_e4m3fn have"
    if dtype == torch.float8_e4m3fn and capability < FP8:
        return f"{name} has no fp8 matrix instructions: they came with 8.9"
    if capability < TMA:
        return f"{name} has no bulk tensor copy (TMA): it came with 9.0"
    return None
