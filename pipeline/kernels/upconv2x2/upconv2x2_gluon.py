"""The transposed convolution of `upconv2x2` by two groups of warps that alternate, in Gluon.

The idea: with 128 channels in and 64 out the product is short and the store is long. One warp loads, two groups of four
multiply; while one group scales, rounds and writes its 64 channels × 256 pixels, the other has the tensor cores and the
loads for the tile after are on their way, so that the memory never rests. The four output pixels of an input pixel are
tiles that follow each other: the pixels come from memory once and from L2 three times.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from pipeline.kernels.common.dependent_launch import DEPENDENT, let_the_next_begin, wait_for_those_before
from pipeline.kernels.common.epilogue import Epilogue
from pipeline.kernels.common.gluon_epilogue import finish, halves_of, load_channels, load_slopes, stage
from pipeline.kernels.common.nhwc import multiprocessors, next_power_of_two
from pipeline.kernels.common.program import on_grid
from pipeline.kernels.common.tma import barriers, boxes_of, load_box, store_box, view, weight_boxes_of


@dataclass(frozen=True)
class Tile:
    """A cut of the work: `rows` × `cols` input pixels, `depth` channels a step, `boxes` of them on their way."""

    rows: int
    cols: int
    depth: int
    boxes: int


@gluon.jit
def _place(tile, tiles_x, tiles_out, CORNERS: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr):
    """First row, first column, output pixel 0 to 3 (of volumes: 7) and first channel of a tile."""
    block = tile % (CORNERS * tiles_out)
    spot = tile // (CORNERS * tiles_out)
    return spot // tiles_x * ROWS, spot % tiles_x * COLS, block // tiles_out, block % tiles_out * 64


@gluon.jit
def _load(
    x_boxes, weight_boxes, pixels, weights, full, empty, geometry,
    CORNERS: gl.constexpr,
    ROWS: gl.constexpr, COLS: gl.constexpr, DEPTH: gl.constexpr, BOXES: gl.constexpr, PAIRED: gl.constexpr,
):  # fmt: skip
    """Run the loading warp: for each tile and chunk of channels load a box of pixels and its weights."""
    tiles_x, tiles_out, tiles, chunks, _ = geometry
    dtype: gl.constexpr = x_boxes.dtype
    STEP: gl.constexpr = 16 if PAIRED else 1
    wait_for_those_before()
    turn = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        y0, x0, corner, o0 = _place(tile, tiles_x, tiles_out, CORNERS, ROWS, COLS)
        for chunk in range(chunks):
            slot = turn % BOXES
            ready = full.index(slot)
            mbarrier.wait(empty.index(slot), (turn // BOXES & 1) ^ 1)
            mbarrier.expect(ready, (ROWS * COLS + 64) * DEPTH * dtype.primitive_bitwidth // 8)
            box = view(pixels.index(slot), dtype, x_boxes.block_shape, x_boxes.layout)
            held = view(weights.index(slot), dtype, weight_boxes.block_shape, weight_boxes.layout)
            load_box(x_boxes, [y0, x0, chunk * DEPTH], ready, box)
            load_box(weight_boxes, [corner, o0 // STEP, 0, 0, chunk * DEPTH], ready, held)
            turn += 1
    let_the_next_begin()


@gluon.jit
def _multiply(
    GROUP: gl.constexpr, out_boxes, pixels, weights, staging, full, empty, pingpong, geometry, ends, slopes,
    CORNERS: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, DEPTH: gl.constexpr, BOXES: gl.constexpr,
    ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr, PAIRED: gl.constexpr, SLOPED: gl.constexpr,
):  # fmt: skip
    """Run a group of warps: make every other tile of this program, from the first product to the store."""
    tiles_x, tiles_out, tiles, chunks, height = geometry
    dtype: gl.constexpr = pixels.dtype
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, ROWS * COLS, 256 // dtype.primitive_bitwidth]
    )
    wait_for_those_before()
    count = GROUP * 1
    for tile in range(gl.program_id(0) + GROUP * gl.num_programs(0), tiles, 2 * gl.num_programs(0)):
        y0, x0, corner, o0 = _place(tile, tiles_x, tiles_out, CORNERS, ROWS, COLS)
        factor, shift = load_channels(ends, o0, SCALED, PAIRED, 64, layout)
        steep = load_slopes(slopes, ends[2], o0, PAIRED, 64, layout) if SLOPED else None
        acc = gl.zeros([64, ROWS * COLS], gl.float32, layout)
        turn = count * chunks
        # As in conv3x3_gluon: no group may run so far ahead that it takes an old box for its own.
        mbarrier.wait(pingpong.index(GROUP), (count // 2 & 1) ^ (1 - GROUP))
        for chunk in range(chunks):
            mbarrier.wait(full.index(turn % BOXES), turn // BOXES & 1)
            seen = pixels.index(turn % BOXES).permute((1, 0))
            acc = warpgroup_mma(weights.index(turn % BOXES), seen, acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=(acc,))
            mbarrier.arrive(empty.index((turn + BOXES - 1) % BOXES), count=1, pred=chunk > 0)
            turn += 1
        mbarrier.arrive(pingpong.index(1 - GROUP), count=1)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index((turn - 1) % BOXES), count=1)
        if CORNERS == 8:  # of a slice of the input the rows of two of the output's; a tile is within one
            y0 += (y0 // height + corner // 4) * height
        halves = halves_of(finish(acc, factor, shift, SCALED, ACTIVATION, SLOPE, PAIRED, steep))
        for half in gl.static_range(2):
            quarters = halves_of(halves[half])
            for slot in gl.static_range(2):
                buffer = staging.index(2 * GROUP + slot)
                stage(quarters[slot], buffer, out_boxes.dtype)
                box = view(buffer, out_boxes.dtype, out_boxes.block_shape, out_boxes.layout)
                row = y0 + (2 * half + slot) * (ROWS // 4)
                store_box(out_boxes, [row, corner // 2 % 2, x0, corner % 2, o0], box)
        count += 2
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["channels", "tiles_x", "tiles_out", "tiles", "chunks", "height"])
def _upconv2x2_gluon(
    x_boxes, weight_boxes, out_boxes, scale, bias, slopes, channels, tiles_x, tiles_out, tiles, chunks, height,
    CORNERS: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, DEPTH: gl.constexpr, BOXES: gl.constexpr,
    ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr, PAIRED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Input [N · H, W, in], weight [4, channels, in], output [N · H, 2, W, 2, channels].

    With 8 CORNERS the input's rows are those of slices of `height`, each of which makes two of the output.
    """
    dtype: gl.constexpr = x_boxes.dtype
    swizzled: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS * COLS, DEPTH], dtype)
    pixels = gl.allocate_shared_memory(dtype, [BOXES, ROWS * COLS, DEPTH], swizzled)
    weights = gl.allocate_shared_memory(dtype, [BOXES, 64, DEPTH], swizzled)
    out_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS * COLS // 4, 64], out_boxes.dtype)
    staging = gl.allocate_shared_memory(out_boxes.dtype, [4, ROWS * COLS // 4, 64], out_layout)
    full, empty, pingpong = barriers(BOXES), barriers(BOXES), barriers(2)
    fence_async_shared()
    geometry = (tiles_x, tiles_out, tiles, chunks, height)
    ends = (scale, bias, channels)
    slopes_or_any = bias if slopes is None else slopes
    to_multiply = (out_boxes, pixels, weights, staging, full, empty, pingpong, geometry, ends, slopes_or_any)
    to_load = (x_boxes, weight_boxes, pixels, weights, full, empty, geometry)
    MULTIPLY: gl.constexpr = (CORNERS, ROWS, COLS, DEPTH, BOXES, ACTIVATION, SLOPE, SCALED, PAIRED, slopes is not None)
    LOAD: gl.constexpr = (CORNERS, ROWS, COLS, DEPTH, BOXES, PAIRED)
    gl.warp_specialize([
        (_multiply, (0,) + to_multiply + MULTIPLY),
        (_multiply, (1,) + to_multiply + MULTIPLY),
        (_load, to_load + LOAD),
    ], [num_warps, 4], [232, 40])  # fmt: skip


def launch(x: Tensor, weight: Tensor, epilogue: Epilogue, out: Tensor, tile: Tile) -> None:
    """Queue the transposed convolution of checked x [N, H, W, in] by weight [4, out, in] to out [N, 2 H, 2 W, out].

    A weight [8, out, in] is of volumes: x is [N, D · H, W, in] with D `epilogue.slices`, out [N, 2 D · 2 H, 2 W, out].
    """
    batch, height, width, inner = x.shape
    outer = weight.shape[1]
    tiles_x, tiles_out = -(-width // tile.cols), -(-outer // 64)
    tiles = -(-batch * height // tile.rows) * tiles_x * tiles_out * len(weight)
    paired = weight.dtype == torch.float8_e4m3fn and outer % 16 == 0
    boxed = [tile.rows * tile.cols, tile.depth]
    on_grid(_upconv2x2_gluon, min(tiles, multiprocessors(x.device)))(
        boxes_of(x.reshape(batch * height, width, inner), [tile.rows, tile.cols, tile.depth], boxed),
        weight_boxes_of(weight, 64, boxed, paired),
        shuffled_boxes(out, tile),
        epilogue.bias if epilogue.scale is None else epilogue.scale,
        epilogue.bias,
        epilogue.slopes,
        outer,
        tiles_x,
        tiles_out,
        tiles,
        -(-inner // tile.depth),
        height // epilogue.slices,
        CORNERS=len(weight),
        ROWS=tile.rows,
        COLS=tile.cols,
        DEPTH=tile.depth,
        BOXES=tile.boxes,
        ACTIVATION=epilogue.activation.expression,
        SLOPE=epilogue.activation.slope,
        SCALED=epilogue.scale is not None,
        PAIRED=paired,
        num_warps=4,
        **DEPENDENT,
    )


def shuffled_boxes(out: Tensor, tile: Tile) -> TensorDescriptor:
    """`out` [N, 2 H, 2 W, channels] seen as [N · H, 2, W, 2, channels]; a box is a quarter of a tile."""
    batch, height, width, outer = out.shape
    shape = (batch * height // 2, 2, width // 2, 2, outer)
    strides = (2 * out.stride(1), out.stride(1), 2 * out.stride(2), out.stride(2), 1)
    box = [tile.rows // 4, 1, tile.cols, 1, 64]
    return boxes_of(out.as_strided(shape, strides), box, [tile.rows * tile.cols // 4, 64])


def candidates(x: Tensor, height: int) -> Iterator[Tile]:
    """Yield tiles worth measuring for x [N, H, W, in], likeliest first; of volumes those within a slice."""
    size = x.element_size()
    depth = min(128 // size, max(32 // size, next_power_of_two(x.shape[3])))
    if height % 16 == 0:
        yield Tile(16, 16, depth, 4)
    yield Tile(8, 16, depth, 6)
