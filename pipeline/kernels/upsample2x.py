"""Bilinear upsampling by 2 over NHWC, corners aligned or not.

A program has part of an output row, so that a thread finds its columns once for all of their channels, and each line is
written once. A 1×1 convolution after it commutes with it: run it before, on a quarter of the pixels.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.activation import NONE
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import CHANNELS_IN_FP8, KernelOp, LayerDescription, ended
from pipeline.kernels.common.nhwc import check_floats, next_power_of_two, store
from pipeline.kernels.common.program import on_grid
from pipeline.kernels.common.triton_epilogue import rounded


@dataclass(frozen=True)
class Tile:
    """A cut of the work: `elements` of an output row a program; 2048 are 16 a thread in 4 warps, 32 bytes of fp16."""

    kernel: ClassVar[str] = "upsample2x"
    elements: int = 2048


def reference(x: Tensor, _: Tensor, epilogue: Epilogue, outputs: Outputs, *, align_corners: bool = False) -> None:
    """Compute `upsample2x` in plain PyTorch, on any device."""
    scaled = epilogue.of(x.float()).permute(0, 3, 1, 2)
    large = functional.interpolate(scaled, scale_factor=2, mode="bilinear", align_corners=align_corners)
    store(large.permute(0, 2, 3, 1), outputs.required)


@triton.jit
def _neighbours(place, size, step, ALIGNED: tl.constexpr):
    """Return the two inputs, of `size` in a line, that an output at `place` mixes, and the second one's weight."""
    at = place.to(tl.float32) * step if ALIGNED else tl.maximum(place.to(tl.float32) * 0.5 - 0.25, 0.0)
    first = at.to(tl.int32)
    return first, tl.minimum(first + 1, size - 1), at - first.to(tl.float32)


@triton.jit
def _upsample2x(
    x, out, height, width, channels, x_image_stride, x_row_stride, x_pixel_stride, out_image_stride, out_row_stride,
    out_pixel_stride, scale, row_step, col_step, ALIGNED: tl.constexpr, COLS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Read x [N, H, W, channels], out [N, 2 H, 2 W, channels], channel stride 1."""
    blocks = tl.cdiv(2 * width, COLS)
    place = tl.program_id(0) // blocks
    image, row = (place // (2 * height)).to(tl.int64), (place % (2 * height)).to(tl.int64)
    col = tl.program_id(0) % blocks * COLS + tl.arange(0, COLS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    here = (col < 2 * width)[:, None] & (channel < channels)[None, :]
    up, down, below = _neighbours(row, height, row_step, ALIGNED)
    left, right, beside = _neighbours(col, width, col_step, ALIGNED)
    beside = beside[:, None]
    lines = x + image * x_image_stride
    upper, lower = lines + up.to(tl.int64) * x_row_stride, lines + down.to(tl.int64) * x_row_stride
    at_left = (left * x_pixel_stride)[:, None] + channel[None, :]
    at_right = (right * x_pixel_stride)[:, None] + channel[None, :]
    above = tl.load(upper + at_left, mask=here).to(tl.float32) * (1.0 - beside)
    above += tl.load(upper + at_right, mask=here).to(tl.float32) * beside
    under = tl.load(lower + at_left, mask=here).to(tl.float32) * (1.0 - beside)
    under += tl.load(lower + at_right, mask=here).to(tl.float32) * beside
    value = above * (1.0 - below) + under * below
    if scale is not None:
        value = value * tl.load(scale + channel, mask=channel < channels)[None, :]
    target = out + image * out_image_stride + row * out_row_stride
    target = target + ((col * out_pixel_stride)[:, None] + channel[None, :])
    tl.store(target, rounded(value, out.dtype.element_ty), mask=here)


def upsample2x(
    x: Tensor, _: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile, *, align_corners: bool = False
) -> None:
    """Write x [N, H, W, C] at twice the height and width, scaled and rounded; fp32, fp16 or fp8, channel stride 1."""
    batch, height, width, channels = x.shape
    out = outputs.required
    if tuple(out.shape) != (batch, 2 * height, 2 * width, channels):
        raise ValueError(f"out must be {[batch, 2 * height, 2 * width, channels]}, got {list(out.shape)}")
    if x.stride(3) != 1 or out.stride(3) != 1:
        raise ValueError("x and out must have their channels side by side")
    if epilogue.bias is not None or epilogue.activation != NONE or epilogue.parts or epilogue.slices > 1:
        raise ValueError(f"the epilogue must only scale, got {epilogue.key}")
    check_floats("scale", epilogue.scale, channels)
    wide = min(64, next_power_of_two(channels))
    cols = max(1, min(tile.elements // wide, next_power_of_two(2 * width)))
    on_grid(_upsample2x, batch * 2 * height * triton.cdiv(2 * width, cols), triton.cdiv(channels, wide))(
        x, out, height, width, channels, *x.stride()[:3], *out.stride()[:3], epilogue.scale,
        (height - 1) / (2 * height - 1), (width - 1) / (2 * width - 1), ALIGNED=align_corners, COLS=cols, CHANNELS=wide,
    )  # fmt: skip


def candidates(*_: object) -> Iterator[Tile]:
    """Yield tiles worth measuring for any x [N, H, W, C], likeliest first."""
    yield from map(Tile, (2048, 1024, 4096))


def _accepts(layer: LayerDescription, *, align_corners: bool) -> bool:
    twice = layer.out_size == (2 * layer.in_size[0], 2 * layer.in_size[1])
    aligned = layer.align_corners == align_corners
    # each thread loads 16 neighbouring channels
    return layer.kind == "upsample_bilinear2d" and twice and aligned and layer.inner % CHANNELS_IN_FP8 == 0


def _op(name: str, *, align_corners: bool) -> KernelOp:
    enlarged = partial(functional.interpolate, scale_factor=2, mode="bilinear", align_corners=align_corners)
    return KernelOp(
        name=name, accepts=partial(_accepts, align_corners=align_corners),
        reference=partial(reference, align_corners=align_corners),
        launch=partial(upsample2x, align_corners=align_corners), candidates=candidates,
        library=lambda x, _, ends: ended(enlarged(x), ends), taps=16, by_channel=True, tile_types=(Tile,), growth=2,
    )  # fmt: skip


OP = _op("upsample2x", align_corners=False)
ALIGNED_OP = _op("upsample2x_aligned", align_corners=True)
