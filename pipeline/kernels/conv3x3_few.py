"""3×3 convolution, padding 1, stride 1, of very few channels to very few, without a product of matrices.

The idea: two channels to two are 36 multiplications a pixel and 8 bytes to move, so nothing is left for tensor cores to
do, and a multiple of 16 channels would be mostly zeros. Neighbouring threads have neighbouring pixels of a row; the L1
answers the nine reads of each value.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import triton
import triton.language as tl
from torch import Tensor

from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_few
from pipeline.kernels.common.kernel_op import KernelOp, LayerDescription
from pipeline.kernels.common.nhwc import next_power_of_two
from pipeline.kernels.common.program import on_grid
from pipeline.kernels.common.triton_epilogue import finish, rounded
from pipeline.kernels.conv3x3 import OP as OF_MANY

MOST_IN, MOST_OUT = 4, 8  # 2 → 2 was measured; with 8 → 8 the multiplications alone would take 36 µs at 512 × 512 × 8
FOLDS = frozenset({"slopes"})


@dataclass(frozen=True)
class Tile:
    """A cut of the work: `pixels` of a row a program."""

    kernel: ClassVar[str] = "conv3x3_few"
    pixels: int
    warps: int = 4


@triton.jit
def _conv3x3_few(
    x, weight, out, scale, bias, slopes, x_image_stride, x_row_stride, x_pixel_stride,
    out_image_stride, out_row_stride, out_pixel_stride, height, width,
    IN: tl.constexpr, CHANNELS: tl.constexpr, OUT: tl.constexpr, PIXELS: tl.constexpr,
    ACTIVATION: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Read x [N, H, W, IN] and weight [9, CHANNELS, IN]; write out [N, H, W, CHANNELS]."""
    row, number = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    col = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.arange(0, OUT)
    image = x + number * x_image_stride
    acc = tl.zeros((PIXELS, OUT), tl.float32)
    for tap in tl.static_range(9):
        y, at = row + tap // 3 - 1, col + tap % 3 - 1
        inside = (y >= 0) & (y < height) & (at >= 0) & (at < width)
        for entry in tl.static_range(IN):
            seen = tl.load(image + y * x_row_stride + at * x_pixel_stride + entry, mask=inside, other=0.0)
            taps = tl.load(weight + (tap * CHANNELS + channel) * IN + entry, mask=channel < CHANNELS, other=0.0)
            acc += seen.to(tl.float32)[:, None] * taps.to(tl.float32)[None, :]
    y = finish(acc, scale, bias, channel, CHANNELS, ACTIVATION, SLOPE, False, slopes)
    target = out + number * out_image_stride + row * out_row_stride + (col * out_pixel_stride)[:, None]
    stored = (col < width)[:, None] & (channel < CHANNELS)[None, :]
    tl.store(target + channel[None, :], rounded(y, out.dtype.element_ty), mask=stored)


def conv3x3_few(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile | None = None) -> None:
    """Write the convolution of x [N, H, W, in] through the epilogue into out [N, H, W, out], fp16 or fp8.

    The weight is [9, out, in] from `conv3x3.pack`; at most 4 channels become at most 8.
    """
    batch, height, width, inner = x.shape
    outer = weight.shape[1]
    out = check_few(x, (weight, (9, outer, inner)), epilogue, outputs, ((batch, height, width, outer), FOLDS))
    if inner > MOST_IN or outer > MOST_OUT:
        raise ValueError(f"weight must have at most {MOST_IN} channels in and {MOST_OUT} out, got {list(weight.shape)}")
    tile = tile or next(candidates(x))
    on_grid(_conv3x3_few, triton.cdiv(width, tile.pixels), height, batch)(
        x, weight, out, epilogue.scale, epilogue.bias, epilogue.slopes, *x.stride()[:3], *out.stride()[:3],
        height, width, IN=inner, CHANNELS=outer, OUT=next_power_of_two(outer), PIXELS=tile.pixels,
        **epilogue.constants, num_warps=tile.warps,
    )  # fmt: skip


def candidates(x: Tensor, *_: object) -> Iterator[Tile]:
    """Yield tiles worth measuring for x [N, H, W, in], likeliest first."""
    widest = max(32, next_power_of_two(x.shape[2]))
    for pixels, warps in ((256, 4), (128, 4), (512, 4)):
        if pixels <= widest or pixels == 128:
            yield Tile(pixels, warps)


def _accepts(layer: LayerDescription) -> bool:
    few = layer.inner <= MOST_IN and layer.outer <= MOST_OUT
    return layer.kind == "conv2d" and layer.is_square(3, 1, 1) and few


OP: KernelOp = replace(
    OF_MANY,
    name="conv3x3_few",
    accepts=_accepts,
    launch=conv3x3_few,
    candidates=candidates,
    tile_types=(Tile,),
    reads=frozenset({"fp16"}),
    folds=FOLDS,
    most_channels=(MOST_IN, MOST_OUT),
)
