"""NHWC views, the descriptors that the bulk tensor copy reads them through, and what both demand."""

import os
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from triton.tools.tensor_descriptor import TensorDescriptor

from pipeline.kernels.common.capability import is_cuda

FP8_MAX = 448.0  # the largest finite float8_e4m3fn
STORED = (torch.float16, torch.float8_e4m3fn)
MOST_PIXELS = 2**31 - 2**12  # numbered in 32 bits, those of a last tile that isn't full among them
HOPPER_SHARED_BYTES = 227 * 1024  # of compute capability 9.0, for one program
MOST_PROGRAMS = 65535  # of a grid along its second and its third axis
Map = TypeVar("Map", Tensor, Tensor | None)


def in_fp8(value: Tensor) -> Tensor:
    """Convert a tensor of any shape to e4m3, saturating."""
    return value.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def by_pixels(value: Map) -> Map:
    """Return [N, channels, H, W] seen as [N, H, W, channels], None as None; a side of length 1 steps as a dense one."""
    if value is None:
        return value
    seen, reach = value.permute(0, 2, 3, 1), 1
    steps: list[int] = []
    for length, step in zip(reversed(seen.shape), reversed(seen.stride()), strict=True):
        steps.insert(0, reach if length == 1 else step)
        reach = steps[0] * length
    return seen if tuple(steps) == seen.stride() else seen.as_strided(seen.shape, steps)


def check(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError, which begins with `name`, unless TMA can move [..., channels] of this shape."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must be {list(shape)}, got {list(tensor.shape)}")
    if 0 in shape or any(step == 0 and length > 1 for step, length in zip(tensor.stride(), shape, strict=True)):
        raise ValueError(f"{name} must be neither empty nor expanded, got {list(shape)}, {list(tensor.stride())}")
    if tensor.dtype not in STORED:
        raise ValueError(f"{name} must be float16 or float8_e4m3fn, got {tensor.dtype}")
    if tensor.stride(-1) != 1:
        raise ValueError(f"{name} must have its channels side by side, got stride {tensor.stride(-1)}")
    odd = [step for step in tensor.stride()[:-1] if step * tensor.element_size() % 16]
    if odd or tensor.data_ptr() % 16:
        raise ValueError(f"{name} must start and step by multiples of 16 bytes, got strides {list(tensor.stride())}")


def check_floats(name: str, tensor: Tensor | None, *shape: int) -> None:
    """Raise ValueError, which begins with `name`, unless a tensor has this shape, of contiguous fp32, or is None."""
    if tensor is None:
        return
    if tuple(tensor.shape) != shape or tensor.dtype != torch.float32 or not tensor.is_contiguous():
        found = f"{list(tensor.shape)} {tensor.dtype}, strides {list(tensor.stride())}"
        raise ValueError(f"{name} must be {list(shape)} contiguous float32, got {found}")


def check_pixels(name: str, count: int) -> None:
    """Raise ValueError, which begins with `name`, where a kernel can't number these pixels in 32 bits."""
    if count >= MOST_PIXELS:
        raise ValueError(f"{name} must have less than {MOST_PIXELS} pixels, got {count}")


def check_counted(name: str, tensor: Tensor) -> None:
    """Raise ValueError where a kernel can't count an image's values of a map [N, H, W, channels] in 32 bits."""
    _, height, width, _ = tensor.shape
    if max(height * tensor.stride(1), height * width * tensor.stride(2)) >= 2**31:
        raise ValueError(f"{name} must have less than 2^31 values an image, got {list(tensor.shape)}")


def check_few_programs(name: str, count: int) -> None:
    """Raise ValueError where a grid can't have these programs along its second axis; `name` has a program each."""
    if count > MOST_PROGRAMS:
        raise ValueError(f"{name} must be at most {MOST_PROGRAMS}, got {count}")


def descriptor(tensor: Tensor | None, box: list[int]) -> TensorDescriptor | None:
    """Return the TMA descriptor of boxes of a tensor [..., channels]; outside it reads zeros and writes nothing."""
    if tensor is None:
        return None
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), box)


@cache
def multiprocessors(device: torch.device) -> int:
    """Return the programs of a persistent grid; two for the interpreter, which walks one program after the other."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if is_cuda(device) else 2


@cache
def shared_bytes(device: torch.device) -> int:
    """Return the shared memory that one program may have, in bytes; an H100's where there is no GPU."""
    if not is_cuda(device):
        return HOPPER_SHARED_BYTES
    return int(torch.cuda.get_device_properties(device).shared_memory_per_block_optin)  # type: ignore[attr-defined]


def interpreted() -> bool:
    """Return whether Triton's kernels run in its interpreter, on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def store(value: Tensor, out: Tensor) -> None:
    """Round an fp32 value of any shape into `out`, of the same, as the kernels do: fp8 saturates, fp16 overflows."""
    out.copy_(in_fp8(value) if out.dtype == torch.float8_e4m3fn else value)


def continued(x: Tensor, around: int, mode: str) -> Tensor:
    """Return x [N, H, W, C] with rows and columns around it, as torch's "reflect" or "replicate" makes them."""
    return functional.pad(x[:, None], (0, 0, *[around] * 4), mode)[:, 0]


def next_power_of_two(number: int) -> int:
    """Return the least power of two that isn't below `number`."""
    return 1 << max(number - 1, 0).bit_length()


def depth_of(x: Tensor) -> int:
    """Return how many input channels of x [..., in] a plain kernel multiplies at a step: 32 to 128 bytes of them."""
    size = x.element_size()
    return min(128 // size, max(32 // size, next_power_of_two(x.shape[-1])))


def stride_of(size: tuple[int, ...], out_size: tuple[int, ...]) -> int:
    """Return the stride, 1 or 2, of a convolution, padded by half of its window, from `size` to `out_size`."""
    for stride in (1, 2):
        if tuple(-(-side // stride) for side in size) == tuple(out_size):
            return stride
    raise ValueError(f"out must have the height and width {list(size)} or half of it, got {list(out_size)}")
