"""What a GPU must have for a kernel of this room to run on it."""

import torch

# Compute capability 9.0 brought the bulk tensor copy (TMA) that every convolution here loads its window with.
TMA = (9, 0)
# 8.9 (Ada) brought fp8 matrix instructions; before it there is no fp8 path at all.
FP8 = (8, 9)


def supported(capability: tuple[int, int], dtype: torch.dtype) -> str | None:
    """Why kernels of this room can't run in `dtype` on a GPU of this compute capability, or None where they can."""
    name = f"compute capability {capability[0]}.{capability[1]}"
    if dtype not in (torch.float16, torch.float8_e4m3fn):
        return f"{dtype} has no kernel here: float16 and float8_e4m3fn have"
    if dtype == torch.float8_e4m3fn and capability < FP8:
        return f"{name} has no fp8 matrix instructions: they came with 8.9"
    if capability < TMA:
        return f"{name} has no bulk tensor copy (TMA): it came with 9.0"
    return None
