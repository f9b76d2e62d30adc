"""The borders of the fp8 part of a net, and the change of layout: one pass each, reading and writing once.

The idea: what no convolution's epilogue can do on the way is a copy, and a copy is bound by memory, so it may as well
scale and round.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.kernels.epilogue import rounded
from pipeline.kernels.nhwc import store

BLOCK = 1024  # elements a program: 8 a thread in 4 warps, 16 bytes of fp16


def reference(x: Tensor, out: Tensor, *, scale: float = 1.0) -> None:
    """What `rescale` computes, in plain PyTorch, on any device."""
    store(x.float() * scale, out)


@triton.jit
def _border(
    x, out, height, width, channels, elements,
    x_image_stride, x_row_stride, x_pixel_stride, x_channel_stride,
    out_image_stride, out_row_stride, out_pixel_stride, scale, BLOCK: tl.constexpr,
):  # fmt: skip
    """Read x [N, H, W, channels] with any strides, out [N, H, W, channels] with channel stride 1."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    channel, pixel = at % channels, at // channels
    col, row, image = pixel % width, pixel // width % height, pixel // width // height
    source = x + image * x_image_stride + row * x_row_stride + col * x_pixel_stride + channel * x_channel_stride
    value = tl.load(source, mask=at < elements).to(tl.float32) * scale
    target = out + image * out_image_stride + row * out_row_stride + col * out_pixel_stride + channel
    tl.store(target, rounded(value, out.dtype.element_ty), mask=at < elements)


def rescale(x: Tensor, out: Tensor, *, scale: float = 1.0) -> None:
    """Write x · scale, rounded to `out`'s dtype: 1 / scale quantises, scale dequantises, 1 changes the layout.

    Args:
        x: [N, H, W, C] with any strides (an NCHW tensor permuted, say), fp32, fp16 or fp8.
        out: [N, H, W, C] with channel stride 1, fp32, fp16 or fp8.
        scale: what x is multiplied with, in fp32.

    Raises:
        ValueError: the shapes differ, or `out`'s channels don't lie side by side.
    """
    if x.shape != out.shape or x.dim() != 4:
        raise ValueError(f"out must be {list(x.shape)} as x is, with 4 dimensions, got {list(out.shape)}")
    if out.stride(3) != 1:
        raise ValueError(f"out must have its channels side by side, got stride {out.stride(3)}")
    _, height, width, channels = x.shape
    _border[triton.cdiv(x.numel(), BLOCK),](
        x, out, height, width, channels, x.numel(), *x.stride(), *out.stride()[:3], scale, BLOCK=BLOCK
    )


def amax(x: Tensor) -> float:
    """The largest magnitude in x: what fp8's scale of a tensor is calibrated on."""
    return float(torch.amax(x.float().abs()))
