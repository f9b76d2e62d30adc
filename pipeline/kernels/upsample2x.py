"""Bilinear upsampling by 2, corners not aligned, over NHWC.

The idea: an output pixel mixes four inputs with weights 9, 3, 3 and 1 sixteenths, the same four patterns everywhere but
at the border, where the index is clamped. The four reads hit the L2; what counts is that each line is written once. A
1×1 convolution after it commutes with it: run it before, on a quarter of the pixels.
"""

import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.epilogue import rounded
from pipeline.kernels.nhwc import store

BLOCK = 1024  # elements a program: 8 a thread in 4 warps, 16 bytes of fp16


def reference(x: Tensor, out: Tensor, *, scale: float = 1.0) -> None:
    """What `upsample2x` computes, in plain PyTorch, on any device."""
    planes = x.float().permute(0, 3, 1, 2) * scale
    store(functional.interpolate(planes, scale_factor=2, mode="bilinear").permute(0, 2, 3, 1), out)


@triton.jit
def _upsample2x(
    x, out, height, width, channels, elements, x_image_stride, x_row_stride, x_pixel_stride,
    out_image_stride, out_row_stride, out_pixel_stride, scale, BLOCK: tl.constexpr,
):  # fmt: skip
    """Read x [N, H, W, channels], out [N, 2 H, 2 W, channels], channel stride 1."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel, pixel = at % channels, at // channels
    col, row, image = pixel % (2 * width), pixel // (2 * width) % (2 * height), pixel // (4 * width * height)
    # The nearer input has weight 3/4, its neighbour on the side of the output pixel 1/4.
    near_row, near_col = row // 2, col // 2
    far_row = tl.minimum(tl.maximum(near_row + 2 * (row % 2) - 1, 0), height - 1)
    far_col = tl.minimum(tl.maximum(near_col + 2 * (col % 2) - 1, 0), width - 1)
    source = x + image * x_image_stride + channel
    here = at < elements
    upper = 0.75 * tl.load(source + near_row * x_row_stride + near_col * x_pixel_stride, mask=here).to(tl.float32)
    upper += 0.25 * tl.load(source + near_row * x_row_stride + far_col * x_pixel_stride, mask=here).to(tl.float32)
    lower = 0.75 * tl.load(source + far_row * x_row_stride + near_col * x_pixel_stride, mask=here).to(tl.float32)
    lower += 0.25 * tl.load(source + far_row * x_row_stride + far_col * x_pixel_stride, mask=here).to(tl.float32)
    value = (0.75 * upper + 0.25 * lower) * scale
    target = out + image * out_image_stride + row * out_row_stride + col * out_pixel_stride + channel
    tl.store(target, rounded(value, out.dtype.element_ty), mask=here)


def upsample2x(x: Tensor, out: Tensor, *, scale: float = 1.0) -> None:
    """Write x at twice the height and width, times `scale`, rounded to `out`'s dtype.

    Args:
        x: [N, H, W, C] with channel stride 1, fp32, fp16 or fp8.
        out: [N, 2 H, 2 W, C] with channel stride 1, fp32, fp16 or fp8.
        scale: x's scale over `out`'s where either is fp8.

    Raises:
        ValueError: a shape or stride is not as above.
    """
    batch, height, width, channels = x.shape
    if tuple(out.shape) != (batch, 2 * height, 2 * width, channels):
        raise ValueError(f"out must be {[batch, 2 * height, 2 * width, channels]}, got {list(out.shape)}")
    if x.stride(3) != 1 or out.stride(3) != 1:
        raise ValueError("x and out must have their channels side by side")
    _upsample2x[triton.cdiv(out.numel(), BLOCK),](
        x, out, height, width, channels, out.numel(), *x.stride()[:3], *out.stride()[:3], scale, BLOCK=BLOCK
    )
