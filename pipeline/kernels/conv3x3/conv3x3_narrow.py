"""The 3×3 convolution of `conv3x3` for few channels, where memory is what takes the time.

The idea: pixels are the rows of the product, so that 8, 16 or 32 output channels fill its columns and none is wasted.
A program walks down a strip of pixels one input row at a time. A row is read at three horizontal shifts, straight into
the registers that feed wgmma (`common/quads.py`), and each read serves three taps: its products go to the sums of the
output rows above, here and below, the first of which is then complete. A pixel comes from L2 about once, from L1 three
times, and never passes through shared memory; weights stay there. Nothing here needs TMA.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from pipeline.kernels.common.epilogue import Epilogue
from pipeline.kernels.common.nhwc import multiprocessors, next_power_of_two
from pipeline.kernels.common.quads import (
    as_operand,
    channel_read,
    channel_written,
    finish_rows,
    load_ends,
    registers,
    row_layout,
    store_row,
    sums_layout,
)

MOST_IN, MOST_OUT = 64, 64


@dataclass(frozen=True)
class Tile:
    """How the work is cut: strips of `rows` × 16 · `warps` pixels and all output channels.

    Attributes:
        rows: of a strip; two less than a multiple of 3, as the three output rows in work take turns.
        warps: of a program, 4 or 8.
        programs: on each multiprocessor.
        ahead: how many chunks of a row's channels are on their way while one is multiplied.
    """

    rows: int
    warps: int = 4
    programs: int = 4
    ahead: int = 1


@gluon.jit
def _hold_weights(
    weight, held, CHANNELS: gl.constexpr,
    IN: gl.constexpr, DEPTH: gl.constexpr, CHUNKS: gl.constexpr, OUT: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Weight [9, channels, IN] into shared memory [9 · CHUNKS, OUT, DEPTH], in the order of `common/quads.py`."""
    WIDTH: gl.constexpr = 32 // held.dtype.primitive_bitwidth
    spread: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [gl.num_warps(), 1], [1, 0])
    column = gl.arange(0, OUT, layout=gl.SliceLayout(1, spread))
    entry = gl.arange(0, DEPTH, layout=gl.SliceLayout(0, spread))
    outer = channel_written(column, GROUP).expand_dims(1)
    inner = channel_read(entry, DEPTH, WIDTH).expand_dims(0)
    for tap in range(9):
        for chunk in gl.static_range(CHUNKS):
            here = inner + chunk * DEPTH
            source = weight + (tap * CHANNELS + outer) * IN + here
            values = gl.load(source, mask=(outer < CHANNELS) & (here < IN), other=0.0)
            held.index(tap * CHUNKS + chunk).store(values)
    fence_async_shared()


@gluon.jit
def _load_row(image, row, x0, strides, height, width, CHUNK: gl.constexpr, IN: gl.constexpr, DEPTH: gl.constexpr):
    """A chunk of an input row's channels at three horizontal shifts, each [16 · warps, DEPTH]; 0 outside the image."""
    layout: gl.constexpr = row_layout(DEPTH // 4, DEPTH, gl.num_warps())
    UNIT: gl.constexpr = 128 // image.dtype.element_ty.primitive_bitwidth
    pixel = gl.arange(0, 16 * gl.num_warps(), layout=gl.SliceLayout(1, layout))
    channel = CHUNK * DEPTH + gl.arange(0, DEPTH, layout=gl.SliceLayout(0, layout)).expand_dims(0)
    row_stride, unit_stride = strides
    line = image + row * row_stride
    parts = ()
    for shift in gl.static_range(3):
        col = x0 + pixel + (shift - 1)
        seen = ((col >= 0) & (col < width) & (row >= 0) & (row < height)).expand_dims(1)
        if CHUNK * DEPTH + DEPTH > IN:
            seen = seen & (channel < IN)
        start = (col * (UNIT * unit_stride)).expand_dims(1)
        parts = parts + (gl.load(line + (start + channel), mask=seen, other=0.0),)
    return parts


@gluon.jit
def _add_row(
    acc, parts, held, DOWN: gl.constexpr, CHUNK: gl.constexpr, CHUNKS: gl.constexpr, sums: gl.constexpr,
    FRESH: gl.constexpr,
):  # fmt: skip
    """Queue the products of a chunk of an input row with the three taps of the window's row DOWN: acc [pixels, OUT]."""
    for shift in gl.static_range(3):
        taps = held.index((3 * DOWN + shift) * CHUNKS + CHUNK).permute((1, 0))
        pixels = as_operand(parts[shift], sums)
        acc = warpgroup_mma(pixels, taps, acc, use_acc=not FRESH or shift > 0, is_async=True)
    return acc


@gluon.jit
def _store_planar(y, image, row, x0, inside, height, width, CHANNELS: gl.constexpr):
    """Y [pixels, OUT] in fp32 as a row of an image [channels, height, width], where `inside`."""
    layout: gl.constexpr = y.type.layout
    col = (x0 + gl.arange(0, 16 * gl.num_warps(), layout=gl.SliceLayout(1, layout))).expand_dims(1)
    channel = gl.arange(0, y.shape[1], layout=gl.SliceLayout(0, layout)).expand_dims(0)
    line = image + row * width
    gl.store(line + (channel * height * width + col), y, mask=(col < width) & (channel < CHANNELS) & inside)


@gluon.jit(do_not_specialize=["rows", "tiles_y", "tiles_x", "tiles"])
def conv3x3_rows(
    x, weight, out, scale, bias, x_image_stride, x_row_stride, x_unit, out_image_stride, out_row_stride, out_unit,
    height, width, rows, tiles_y, tiles_x, tiles,
    IN: gl.constexpr, CHANNELS: gl.constexpr, DEPTH: gl.constexpr, CHUNKS: gl.constexpr, OUT: gl.constexpr, GROUP: gl.constexpr,
    AHEAD: gl.constexpr, PLANAR: gl.constexpr,
    ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Read x [N, H, W, IN] and weight [9, channels, IN]; write out [N, H, W, channels], or [N, channels, H, W]."""
    dtype: gl.constexpr = x.dtype.element_ty
    sums: gl.constexpr = sums_layout(OUT, dtype, num_warps)
    COLS: gl.constexpr = 16 * num_warps
    strides = (x_row_stride, x_unit)
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([OUT, DEPTH], dtype)
    held = gl.allocate_shared_memory(dtype, [9 * CHUNKS, OUT, DEPTH], shared)
    _hold_weights(weight, held, CHANNELS, IN, DEPTH, CHUNKS, OUT, GROUP)
    ends = load_ends(scale, bias, CHANNELS, SCALED, GROUP, OUT, sums)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        number = tile // tiles_x // tiles_y
        y0, x0 = tile // tiles_x % tiles_y * rows, tile % tiles_x * COLS
        image = x + number.to(gl.int64) * x_image_stride
        target = out + number.to(gl.int64) * out_image_stride
        queue = ()
        for step in gl.static_range(AHEAD):
            queue = queue + _load_row(
                image, y0 - 1 + step // CHUNKS, x0, strides, height, width, step % CHUNKS, IN, DEPTH
            )
        above = gl.zeros([COLS, OUT], gl.float32, sums)
        here = gl.zeros([COLS, OUT], gl.float32, sums)
        for turn in range(0, rows + 2, 3):
            for step in gl.static_range(3):
                row = y0 - 1 + turn + step
                below = gl.zeros([COLS, OUT], gl.float32, sums)
                for chunk in gl.static_range(CHUNKS):
                    later = row + (chunk + AHEAD) // CHUNKS
                    queue = queue + _load_row(
                        image, later, x0, strides, height, width, (chunk + AHEAD) % CHUNKS, IN, DEPTH
                    )
                    above = _add_row(above, queue, held, 2, chunk, CHUNKS, sums, False)
                    here = _add_row(here, queue, held, 1, chunk, CHUNKS, sums, False)
                    below = _add_row(below, queue, held, 0, chunk, CHUNKS, sums, chunk == 0)
                    above, here, below = warpgroup_mma_wait(0, deps=(above, here, below))
                    queue = queue[3:]
                y = finish_rows(above, ends, SCALED, ACTIVATION, SLOPE)
                inside = (row > y0) & (row <= height)
                if PLANAR:
                    _store_planar(y, target, row - 1, x0, inside, height, width, CHANNELS)
                else:
                    store_row(y, target + (row - 1) * out_row_stride, x0, out_unit, inside, width, CHANNELS, GROUP)
                above, here = here, below


def queue(x: Tensor, weight: Tensor, epilogue: Epilogue, out: Tensor, tile: Tile, *, planar: bool = False) -> None:
    """Queue the convolution of checked x [N, H, W, in] by weight [9, out, in].

    Args:
        x: fp16 or fp8, its strides multiples of 8 elements.
        weight: of x's dtype, contiguous.
        epilogue: scale and bias [out] and an activation.
        out: [N, H, W, out] fp16 or fp8, its strides multiples of 8 elements; [N, out, H, W] fp32 contiguous if planar.
        tile: how the work is cut.
        planar: whether `out` is NCHW.
    """
    batch, height, width, inner = x.shape
    outer = weight.shape[1]
    depth = min(next_power_of_two(inner), 64 // x.element_size())
    columns = max(8, next_power_of_two(outer))
    strides = (out.stride(0), 0, 0) if planar else (out.stride(0), out.stride(1), out.stride(2) * out.element_size() // 16)
    tiles_y, tiles_x = -(-height // tile.rows), -(-width // (16 * tile.warps))
    tiles = batch * tiles_y * tiles_x
    conv3x3_rows[min(tiles, multiprocessors(x.device) * tile.programs),](
        x, weight, out, epilogue.bias if epilogue.scale is None else epilogue.scale, epilogue.bias,
        x.stride(0), x.stride(1), x.stride(2) * x.element_size() // 16, *strides, height, width, tile.rows, tiles_y, tiles_x, tiles,
        IN=inner, CHANNELS=outer, DEPTH=depth, CHUNKS=-(-inner // depth), OUT=columns,
        GROUP=8 if planar else min(columns, 64 // out.element_size()),
        AHEAD=tile.ahead, PLANAR=planar,
        ACTIVATION=epilogue.activation.expression, SLOPE=epilogue.activation.slope,
        SCALED=epilogue.scale is not None, num_warps=tile.warps, maxnreg=registers(tile.warps, tile.programs),
    )  # fmt: skip
