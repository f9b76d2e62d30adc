"""3×3 convolutions of very few channels, which TMA doesn't feed.

With stride 1 no product of matrices is needed: two channels to two are 36 multiplications a pixel and 8 bytes to move.
Of the transposed one of stride 2 all four output pixels of an input pixel are columns of one product, 16 for four
channels: the input is multiplied where it lies, once for each of the four neighbours that the phases read.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import triton
import triton.language as tl
from torch import Tensor

from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_parts
from pipeline.kernels.common.kernel_op import CHANNELS_IN_FP8, KernelOp, LayerDescription
from pipeline.kernels.common.nhwc import STORED, check_few_programs, depth_of, next_power_of_two
from pipeline.kernels.common.program import on_grid
from pipeline.kernels.common.triton_epilogue import finish, rounded
from pipeline.kernels.conv3x3 import OP as CONV3X3
from pipeline.kernels.polyphase import TRANSPOSED_3X3

MOST_IN, MOST_OUT = 4, 8  # 2 → 2 was measured; with 8 → 8 the multiplications alone would take 36 µs at 512 × 512 × 8
MOST_TRANSPOSED = 4  # output channels
FOLDS = frozenset({"slopes"})


@dataclass(frozen=True)
class Tile:
    """A cut of the work: `pixels` of a row a program."""

    kernel: ClassVar[str] = "conv3x3_few"
    pixels: int
    warps: int = 4


@dataclass(frozen=True)
class TransposedTile:
    """A cut of the work: `pixels` of an input row a program, `depth` input channels a step."""

    kernel: ClassVar[str] = "transposed3x3_few"
    pixels: int
    depth: int
    warps: int = 4
    stages: int = 4


@triton.jit
def _conv3x3_few(
    x, weight, out, scale, bias, slopes, x_image_stride, x_row_stride, x_pixel_stride, out_image_stride, out_row_stride,
    out_pixel_stride, height, width, IN: tl.constexpr, CHANNELS: tl.constexpr, OUT: tl.constexpr, PIXELS: tl.constexpr,
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


@triton.jit
def _transposed3x3_few(
    x, weight, out, scale, bias, x_image_stride, x_row_stride, x_pixel_stride, out_image_stride, out_row_stride,
    out_pixel_stride, height, width, IN: tl.constexpr, OUT: tl.constexpr, GROUP: tl.constexpr, PIXELS: tl.constexpr,
    DEPTH: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Read x [N, h, w, IN] and weight [16, OUT, IN]; write out [N, 2 h, 2 w, OUT]; columns go in GROUPs of a phase."""
    STEPS: tl.constexpr = (IN + DEPTH - 1) // DEPTH
    row, number = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    col = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    column = tl.arange(0, 16)
    a, b, channel = column // GROUP // 2, column // GROUP % 2, column % GROUP
    known = (a < 2) & (channel < OUT)
    image = x + number * x_image_stride
    acc = tl.zeros((PIXELS, 16), tl.float32)
    for step in tl.range(4 * STEPS):
        down, across = step // STEPS // 2, step // STEPS % 2
        entry = step % STEPS * DEPTH + tl.arange(0, DEPTH)
        y, at = row + down, col + across
        source = image + y * x_row_stride + (at * x_pixel_stride)[:, None] + entry[None, :]
        seen = tl.load(source, mask=((y < height) & (at < width))[:, None] & (entry < IN)[None, :], other=0.0)
        # Of phase (a, b) the tap that reads this neighbour, where there is one (`polyphase`).
        i, j = down + 1 - a, across + 1 - b
        read = known & (i < 2) & (j < 2)
        place = ((8 * a + 4 * b + 2 * i + j) * OUT + channel) * IN
        taps = tl.load(weight + place[:, None] + entry[None, :], mask=read[:, None] & (entry < IN)[None, :], other=0.0)
        acc = tl.dot(seen, taps.T, acc)
    y = finish(acc, scale, bias, channel, OUT, ACTIVATION, SLOPE, False)
    target = out + number * out_image_stride + (2 * col * out_pixel_stride)[:, None]
    target += ((2 * row + a) * out_row_stride + b * out_pixel_stride + channel)[None, :]
    tl.store(target, rounded(y, out.dtype.element_ty), mask=(col < width)[:, None] & known[None, :])


def conv3x3_few(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile) -> None:
    """Write the convolution of x, at most 4 channels, into out, at most 8; the weight is from `conv3x3.pack`."""
    (batch, height, width, inner), outer = x.shape, weight.shape[1]
    out = _checked(x, weight, epilogue, outputs, FOLDS, (MOST_IN, MOST_OUT))
    on_grid(_conv3x3_few, triton.cdiv(width, tile.pixels), height, batch)(
        x, weight, out, epilogue.scale, epilogue.bias, epilogue.slopes, *x.stride()[:3], *out.stride()[:3],
        height, width, IN=inner, CHANNELS=outer, OUT=next_power_of_two(outer), PIXELS=tile.pixels,
        **epilogue.constants, num_warps=tile.warps,
    )  # fmt: skip


def transposed3x3_few(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: TransposedTile) -> None:
    """Write the transposed convolution of x into out [N, 2 h, 2 w, out]; the weight is from `phase_taps`."""
    (batch, height, width, inner), outer = x.shape, weight.shape[1]
    out = _checked(x, weight, epilogue, outputs, (), (inner, MOST_TRANSPOSED), grows=2)
    on_grid(_transposed3x3_few, triton.cdiv(width, tile.pixels), height, batch)(
        x, weight, out, epilogue.scale, epilogue.bias, *x.stride()[:3], *out.stride()[:3],
        height, width, IN=inner, OUT=outer, GROUP=next_power_of_two(outer), PIXELS=tile.pixels, DEPTH=tile.depth,
        **epilogue.constants, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def _checked(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, folds: Collection[str], most: tuple[int, int], *,
    grows: int = 1,
) -> Tensor:  # fmt: skip
    """Return the output, `grows` times as high and wide as x, of checked operands: pixels may have any step."""
    batch, height, width, inner = x.shape
    outer, taps = weight.shape[1], 9 if grows == 1 else 16
    out = outputs.required
    if weight.dtype != x.dtype or tuple(weight.shape) != (taps, outer, inner) or not weight.is_contiguous():
        found = f"{list(weight.shape)} {weight.dtype}"
        raise ValueError(f"weight must be {[taps, outer, inner]} {x.dtype}, contiguous, got {found}")
    for name, part, wanted in (("x", x, tuple(x.shape)), ("out", out, (batch, grows * height, grows * width, outer))):
        if tuple(part.shape) != wanted:
            raise ValueError(f"{name} must be {list(wanted)}, got {list(part.shape)}")
        if part.dtype not in STORED or part.stride(3) != 1:
            raise ValueError(f"{name} must be float16 or float8_e4m3fn, its channels side by side, got {part.dtype}")
    for name, count in (("x's batch", batch), ("x's height", height)):
        check_few_programs(name, count)
    check_parts(epilogue, outputs, outer, folds)
    if inner > most[0] or outer > most[1]:
        raise ValueError(f"weight must have at most {most[0]} channels in and {most[1]} out, got {list(weight.shape)}")
    return out


def candidates(x: Tensor, *_: object) -> Iterator[Tile]:
    """Yield tiles worth measuring for x [N, H, W, in], likeliest first."""
    widest = max(32, next_power_of_two(x.shape[2]))
    for pixels, warps in ((256, 4), (128, 4), (512, 4)):
        if pixels <= widest or pixels == 128:
            yield Tile(pixels, warps)


def transposed_candidates(x: Tensor, *_: object) -> Iterator[TransposedTile]:
    """Yield tiles worth measuring for x [N, h, w, in], likeliest first."""
    depth = depth_of(x)
    yield TransposedTile(128, depth)
    yield TransposedTile(128, depth, stages=3)
    yield TransposedTile(64, depth)
    yield TransposedTile(256, depth, warps=8, stages=3)


def _accepts(layer: LayerDescription) -> bool:
    few = layer.inner <= MOST_IN and layer.outer <= MOST_OUT
    return layer.kind == "conv2d" and layer.is_square(3, 1, 1) and few


def _accepts_transposed(layer: LayerDescription) -> bool:
    few = layer.outer <= MOST_TRANSPOSED and layer.inner % CHANNELS_IN_FP8 == 0
    return layer.kind == "conv_transpose2d" and layer.is_square(3, 2, 1, 1) and few


OP: KernelOp = replace(
    CONV3X3, name="conv3x3_few", accepts=_accepts, launch=conv3x3_few, candidates=candidates, tile_types=(Tile,),
    reads=frozenset({"fp16"}), folds=FOLDS, most_channels=(MOST_IN, MOST_OUT),
)  # fmt: skip
TRANSPOSED_OP: KernelOp = replace(
    TRANSPOSED_3X3, name="transposed3x3_few", accepts=_accepts_transposed, launch=transposed3x3_few,
    candidates=transposed_candidates, tile_types=(TransposedTile,), writes=frozenset({"fp16"}), folds=frozenset(),
    takes_second=False, phases=1, most_channels=(None, MOST_TRANSPOSED),
)  # fmt: skip
