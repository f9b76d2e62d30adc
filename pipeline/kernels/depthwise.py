"""Depthwise convolution, 3×3 to 7×7 with stride 1 or 2 and half of the window as padding, of an NHWC map.

The idea: it is bound by memory as long as a value isn't loaded, and converted from fp16, k² times. A program walks down
a strip of 16 columns: it loads an input row once for each of the k columns of the window, and adds it to the sums of
all output rows that it belongs to. Where the window's taps lie d pixels apart a strip is of every d-th row.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import triton
import triton.language as tl
from torch import Tensor

from pipeline.kernels.common.block_statistics import COLS
from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_blocks, check_epilogue, store_reference, sums_of
from pipeline.kernels.common.kernel_op import CHANNELS, KernelOp, LayerDescription, convolution
from pipeline.kernels.common.nhwc import check, check_few_programs, stride_of
from pipeline.kernels.common.program import on_grid
from pipeline.kernels.common.triton_epilogue import count_row, finish, rounded

FOLDS = frozenset({"slopes", "statistics"})
DILATED_FOLDS = frozenset({"slopes", "dilation"})  # the rows of a strip make no block of the statistics
WINDOWS = (3, 5, 7)


@dataclass(frozen=True)
class Tile:
    """A cut of the work: strips of `rows` × 16 output pixels × `channels`."""

    kernel: ClassVar[str] = "depthwise"
    rows: int
    channels: int
    warps: int = 4
    stages: int = 1


def pack(weight: Tensor) -> Tensor:
    """Return a depthwise convolution's weight [channels, 1, k, k] as [k², channels]."""
    return weight.flatten(1).T.contiguous()


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `depthwise` in plain PyTorch and fp32, on any device."""
    stride = stride_of(x.shape[1:3], outputs.required.shape[1:3])
    sums = sums_of(x, weight[..., None], stride=stride, dilation=epilogue.dilation, groups=x.shape[3])
    store_reference(epilogue.of(sums), epilogue, outputs)


@triton.jit(do_not_specialize=["rows"])
def _depthwise(
    x, weight, out, scale, bias, slopes, statistics, x_image, x_row, x_unit, out_image, out_row, out_unit, height,
    width, out_height, out_width, channels, rows, apart, SIDE: tl.constexpr, STRIDE: tl.constexpr, COLS: tl.constexpr,
    EACH: tl.constexpr, ACTIVATION: tl.constexpr, SLOPE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Read x [N, H, W, channels] and weight [SIDE², channels]; a strip's rows are `apart`; steps are of 8 values."""
    OPEN: tl.constexpr = (SIDE + STRIDE - 1) // STRIDE  # output rows that an input row belongs to
    parts = (channels + EACH - 1) // EACH
    channel = tl.program_id(0) % parts * EACH + tl.arange(0, EACH)
    col = tl.program_id(0) // parts * COLS + tl.arange(0, COLS)
    top, number = tl.program_id(1) % apart, tl.program_id(2).to(tl.int64)
    first, lines = tl.program_id(1) // apart * rows, (out_height - top + apart - 1) // apart
    known = channel < channels
    source = x + number * x_image + channel[None, :]
    target = out + number * out_image + (col * out_unit)[:, None] * 8 + channel[None, :]
    counted = number * ((out_height + 7) // 8) * ((out_width + COLS - 1) // COLS) + tl.program_id(0) // parts
    taps = ()
    for tap in tl.static_range(SIDE * SIDE):
        factor = tl.load(weight + tap * channels + channel, mask=known, other=0.0).to(tl.float32)[None, :]
        taps = taps + (factor,)  # type: ignore[assignment]
    nothing = tl.zeros((COLS, EACH), tl.float32)
    sums = ()
    for _ in tl.static_range(OPEN):
        sums = sums + (nothing,)  # type: ignore[assignment]
    mean, squares = nothing, nothing
    for step in tl.range(0, tl.minimum(rows, lines - first) + OPEN - 1, num_stages=STAGES):
        for line in tl.static_range(STRIDE):
            y = ((first + step) * STRIDE + line - SIDE // 2) * apart + top
            for shift in tl.static_range(SIDE):
                at = col * STRIDE + (shift - SIDE // 2) * apart
                seen = (at >= 0) & (at < width) & (y >= 0) & (y < height)
                place = source + y.to(tl.int64) * x_row * 8 + (at * x_unit)[:, None] * 8
                value = tl.load(place, mask=seen[:, None] & known[None, :], other=0.0).to(tl.float32)
                grown = ()
                for age in tl.static_range(OPEN):
                    if STRIDE * (OPEN - 1 - age) + line < SIDE:
                        added = sums[age] + value * taps[(STRIDE * (OPEN - 1 - age) + line) * SIDE + shift]
                        grown = grown + (added,)  # type: ignore[assignment]
                    else:
                        grown = grown + (sums[age],)  # type: ignore[assignment]
                sums = grown
        row = first + step - (OPEN - 1)
        complete = sums[0]  # type: ignore[misc]
        y = finish(complete, scale, bias, channel, channels, ACTIVATION, SLOPE, False, slopes)
        stored = (col < out_width)[:, None] & known[None, :] & (row >= first)
        tl.store(target + (row * apart + top).to(tl.int64) * out_row * 8, rounded(y, out.dtype.element_ty), mask=stored)
        if statistics is not None:
            mean, squares = count_row(
                y, mean, squares, statistics + counted * 2 * channels, row, row >= first, col, out_height, out_width,
                channel, channels, COLS,
            )  # fmt: skip
        sums = sums[1:] + (nothing,)  # type: ignore[assignment]


def depthwise(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile) -> None:
    """Write the depthwise convolution of x through the epilogue into `outputs`, whose size tells the stride, 1 or 2.

    X is [N, H, W, channels], fp16, may be a channel slice; the weight [k², channels], k = 3, 5 or 7.
    """
    batch, height, width, channels = x.shape
    out, side = outputs.required, math.isqrt(len(weight))
    stride = stride_of((height, width), out.shape[1:3])
    check("x", x, (batch, height, width, channels))
    if side not in WINDOWS or tuple(weight.shape) != (side**2, channels) or weight.dtype != x.dtype:
        found = f"{list(weight.shape)} {weight.dtype}"
        raise ValueError(f"weight must be [9, 25 or 49, {channels}] {x.dtype}, got {found}")
    shape = (batch, -(-height // stride), -(-width // stride), channels)
    dilated = epilogue.dilation > 1 and stride == 1
    check_epilogue(epilogue, outputs, shape, DILATED_FOLDS if dilated else FOLDS)
    if any(step % CHANNELS for part in (x, out) for step in part.stride()[:3]):
        raise ValueError(f"x and out must step by multiples of {CHANNELS} values, got {x.stride()} and {out.stride()}")
    check_few_programs("x's batch", batch)
    check_blocks(epilogue, tile.rows, COLS)
    across, parts = triton.cdiv(shape[2], COLS), triton.cdiv(channels, tile.channels)
    apart = epilogue.dilation
    strips = triton.cdiv(triton.cdiv(shape[1], apart), tile.rows) * apart
    check_few_programs("x's strips of rows", strips)
    on_grid(_depthwise, across * parts, strips, batch)(
        x, weight, out, epilogue.scale, epilogue.bias, epilogue.slopes, outputs.statistics, x.stride(0),
        x.stride(1) // CHANNELS, x.stride(2) // CHANNELS, out.stride(0), out.stride(1) // CHANNELS,
        out.stride(2) // CHANNELS, height, width, *shape[1:3], channels, tile.rows, apart, SIDE=side, STRIDE=stride,
        COLS=COLS, EACH=tile.channels, STAGES=tile.stages, num_warps=tile.warps, **epilogue.constants,
    )  # fmt: skip


def candidates(x: Tensor, weight: Tensor, epilogue: Epilogue, *_: object) -> Iterator[Tile]:
    """Yield tiles worth measuring, likeliest first; a thread has 2 to 4 channels, whose taps it holds in registers."""
    lines = x.shape[1] // epilogue.dilation
    rows = 32 if lines > 64 else 16 if lines > 16 else 8
    yield Tile(rows, 32, 8 if len(weight) > 9 else 4, 3)
    yield Tile(rows, 32, 8 if len(weight) > 9 else 4)
    if x.shape[3] > 32:
        yield Tile(rows, 64, 8, 3)
        yield Tile(rows, 64, 8)


def _accepts(layer: LayerDescription, *, stride: int, dilated: bool) -> bool:
    side, apart = layer.window[0], layer.dilation[0]
    own = layer.kind == "conv2d" and layer.groups == layer.inner == layer.outer and layer.inner % CHANNELS == 0
    around = (side // 2 * apart, side // 2 * apart)
    square = layer.window == (side, side) and layer.padding == around and layer.dilation == (apart, apart)
    return own and square and side in WINDOWS and layer.stride == (stride, stride) and (apart > 1) == dilated


def _op(name: str, *, stride: int = 1, dilated: bool = False) -> KernelOp:
    return KernelOp(
        name=name, accepts=partial(_accepts, stride=stride, dilated=dilated), reference=reference, launch=depthwise,
        candidates=candidates, library=partial(convolution, stride=stride), taps=9 / stride**2, tile_types=(Tile,),
        pack=pack, tap_axis=0, reads=frozenset({"fp16"}), folds=DILATED_FOLDS if dilated else FOLDS,
        growth=1 / stride, by_channel=True,
    )  # fmt: skip


OP = _op("depthwise")
DILATED_OP = _op("depthwise_dilated", dilated=True)
STRIDED_OP = _op("depthwise_strided", stride=2)
