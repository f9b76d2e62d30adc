"""The kinds of device, and the one place where they are compared."""

from typing import Literal

Kind = Literal["cuda", "rocm", "xpu", "mps", "cpu"]
Vendor = Literal["nvidia", "amd", "intel", "apple"]

RUNS_ON: tuple[Kind, ...] = ("cuda", "cpu")  # what this version has stages for
TITLES: dict[Kind, str] = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "Intel XPU", "mps": "Apple GPU", "cpu": "CPU"}

# Compute capability 8.9 (Ada) brought fp8 matrix instructions; before it there is no fp8 path at all.
FP8 = (8, 9)


def is_cuda(kind: str) -> bool:
    """Whether this is the kind of NVIDIA's GPUs: of an `Accelerator`, a record's environment or a `torch.device.type`.

    Torch's ROCm builds call AMD's GPUs "cuda" as well; `pipeline.measure.torch_device.open_device` refuses them.
    """
    return kind == "cuda"
