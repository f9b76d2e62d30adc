"""The GPUs and the versions of Triton that the kernels can run on."""

import torch
import triton

FP8 = (8, 9)  # Ada brought fp8 matrix instructions
AMPERE = (8, 0)  # brought asynchronous copies to shared memory; without them these kernels wait for each load
# The major number of the GPUs that have the matrix products (wgmma) and bulk copies of the Gluon kernels.
HOPPER = 9
# Kernels that are written in Gluon. REACHING are those whose views of shared memory overlap.
GLUON = "upconv2x2_gluon, conv_first_gluon, conv_first_rows"
REACHING = "conv3x3_gluon, conv3x3_narrow, conv3x3x3_narrow, conv_head_gluon, polyphase_gluon, polyphase_narrow"
OLDEST = (3, 6)  # of Triton
NO_OVERLAP = (3, 8)  # a release with neither views that grow, as before, nor slices at any plane, as later


def supported(capability: tuple[int, int], dtype: torch.dtype, vendor: str = "nvidia") -> str | None:
    """Return why no kernel can run in `dtype` on a GPU of this compute capability, or None if one can."""
    if vendor != "nvidia":
        return f"the kernels are written for NVIDIA's GPUs, and this one's vendor is {vendor}"
    name = f"compute capability {capability[0]}.{capability[1]}"
    if dtype not in (torch.float16, torch.float8_e4m3fn):
        return f"{dtype} has no kernel here: float16 and float8_e4m3fn have"
    if dtype == torch.float8_e4m3fn and capability < FP8:
        return f"{name} has no fp8 matrix instructions: they came with 8.9"
    if capability < AMPERE:
        return f"{name} has no asynchronous copies to shared memory: they came with 8.0"
    return None


def is_cuda(device: torch.device) -> bool:
    """Return whether a device is a GPU that torch calls "cuda"."""
    return device.type == "cuda"


def barred_on(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why kernels of this package can't run in `dtype` on a device, or None where they can."""
    if not is_cuda(device):
        return f"on a device without the kernels ({device.type})"
    vendor = "nvidia" if torch.version.hip is None else "amd"  # of the GPUs that this build of torch calls "cuda"
    return supported(torch.cuda.get_device_capability(device), dtype, vendor)


def gluon_barred(capability: tuple[int, int] | None = None) -> str | None:
    """Return why Gluon kernels can't run on a GPU, by default this one, or Hopper where none is; None if they can."""
    here = capability or (torch.cuda.get_device_capability() if torch.cuda.is_available() else (HOPPER, 0))
    if here[0] == HOPPER:
        return None
    written = f"the Gluon kernels ({REACHING}, {GLUON}) are written for Hopper (compute capability 9.0)"
    return f"{written}, and this GPU has {here[0]}.{here[1]}"


def fewest_rows() -> int:
    """Return the fewest rows of a matrix product: 64 on Hopper (wgmma), 16 on earlier GPUs (mma.sync)."""
    return 64 if gluon_barred() is None else 16


def reaching_views_barred(version: str = triton.__version__, capability: tuple[int, int] | None = None) -> str | None:
    """Return why the Gluon kernels of `REACHING` can't run on this GPU or with this Triton, or None if they can."""
    release = tuple(int(part) for part in version.split(".")[:2])
    if release >= OLDEST and release != NO_OVERLAP:
        return gluon_barred(capability)
    return f"Triton {version} doesn't build {REACHING}, whose views overlap: 3.6, 3.7 and 3.9 do"
