"""The last convolution of `conv_head` in plain Triton: 1×1 on any GPU at the pace of memory, 3×3 as a fallback.

The idea: the pixels of an image lie in one line, so that each class's logits are stored in one go. The window's values
come by plain loads, as a box of so few channels gives TMA little to do.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.kernels.common.epilogue import Epilogue
from pipeline.kernels.common.nhwc import next_power_of_two
from pipeline.kernels.common.program import on_grid
from pipeline.kernels.common.triton_epilogue import finish


@dataclass(frozen=True)
class Tile:
    """A cut of the work: `pixels` of an image a program, `depth` input channels a step."""

    pixels: int
    depth: int
    warps: int = 4
    stages: int = 3


@triton.jit
def _conv_head_triton(
    x, weight, logits, scale, bias, x_image_stride, x_row_stride, x_pixel_stride, height, width,
    IN: tl.constexpr, SIDE: tl.constexpr, CLASSES: tl.constexpr, PIXELS: tl.constexpr, DEPTH: tl.constexpr,
    ACTIVATION: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Read x [N, H, W, IN] and weight [SIDE · SIDE, CLASSES, IN]; write logits [N, CLASSES, H, W] fp32."""
    STEPS: tl.constexpr = (IN + DEPTH - 1) // DEPTH
    number = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    label = tl.arange(0, 16)
    acc = tl.zeros((PIXELS, 16), tl.float32)
    for step in tl.range(SIDE * SIDE * STEPS):
        tap = step // STEPS
        channel = step % STEPS * DEPTH + tl.arange(0, DEPTH)
        row, col = pixel // width + tap // SIDE - SIDE // 2, pixel % width + tap % SIDE - SIDE // 2
        inside = (row >= 0) & (row < height) & (col >= 0) & (col < width)
        source = x + number * x_image_stride + row[:, None] * x_row_stride + col[:, None] * x_pixel_stride
        window = tl.load(source + channel[None, :], mask=inside[:, None] & (channel < IN)[None, :], other=0.0)
        known = (label < CLASSES)[:, None] & (channel < IN)[None, :]
        taps = tl.load(weight + (tap * CLASSES + label)[:, None] * IN + channel[None, :], mask=known, other=0.0)
        acc = tl.dot(window, taps.T, acc)
    y = finish(acc, scale, bias, label, CLASSES, ACTIVATION, SLOPE, False)
    plane = logits + (number * CLASSES + label)[None, :] * height * width
    tl.store(plane + pixel[:, None], y, mask=(pixel < height * width)[:, None] & (label < CLASSES)[None, :])


def launch(x: Tensor, weight: Tensor, epilogue: Epilogue, logits: Tensor, tile: Tile) -> None:
    """Queue the convolution of checked x [N, H, W, in] by weight [taps, classes, in] into logits [N, classes, H, W]."""
    batch, height, width, inner = x.shape
    taps, classes, _ = weight.shape
    on_grid(_conv_head_triton, triton.cdiv(height * width, tile.pixels), batch)(
        x, weight, logits, epilogue.scale, epilogue.bias, *x.stride()[:3], height, width,
        IN=inner, SIDE=3 if taps == 9 else 1, CLASSES=classes, PIXELS=tile.pixels, DEPTH=tile.depth,
        ACTIVATION=epilogue.activation.expression, SLOPE=epilogue.activation.slope,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def candidates(x: Tensor) -> Iterator[Tile]:
    """Yield tiles worth measuring for x [N, H, W, in], likeliest first."""
    fp8 = x.dtype == torch.float8_e4m3fn
    depth = min(128 if fp8 else 64, max(32 if fp8 else 16, next_power_of_two(x.shape[3])))
    yield Tile(128, depth)
    yield Tile(64, depth)
    yield Tile(256, depth)
