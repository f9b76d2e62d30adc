"""The phases of `polyphase` by two groups of warps that share every box, in Gluon.

The idea: group 0 makes the output's even rows, group 1 the odd ones, of one column phase. Both read the same boxes:
of the small map one for each horizontal offset, two rows taller than the tile, serves two taps of either group; of the
full map one box of a parity plane, one row taller, serves the three vertical taps, two of one group and one of the
other. That is 4.5 rows of 16 pixels from L2 a product of 64 × 256, and 5.7: less than `conv3x3_gluon`'s 6.

A box is given back when both groups have read it, so neither runs further ahead than there are boxes: that is the only
order between them. While one stores, the other has the tensor cores for what lies ready.

With at most 32 output channels the rows of a product hold both column phases of them. A tap that one of the two lacks
is loaded from outside the weight, where TMA reads zeros.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
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

from pipeline.kernels.common.epilogue import required
from pipeline.kernels.common.gluon_epilogue import finish, halves_of, load_channels, stage
from pipeline.kernels.common.nhwc import multiprocessors, next_power_of_two
from pipeline.kernels.common.tma import barriers, boxes_of, store_box, view, weight_boxes_of
from pipeline.kernels.polyphase.polyphase_loads import load, place
from pipeline.kernels.polyphase.polyphase_operands import Operands

COLS = 16  # pixels of a row of a tile: two of the eight rows over which TMA's swizzle repeats
SHARED_BYTES = 227 * 1024 - 2048  # what one program may have on compute capability 9.0, less the barriers


@dataclass(frozen=True)
class Tile:
    """How the work is cut: `rows` × 16 pixels of each of two phases, `depth` channels a step, `stages` on their way."""

    rows: int
    depth: int
    stages: int


@gluon.jit
def _product(
    acc, pixels, weights, slot, row: gl.constexpr, matrix: gl.constexpr,
    ROWS: gl.constexpr, DEPTH: gl.constexpr, SPREAD: gl.constexpr,
):  # fmt: skip
    """Queue a tap's product, and wait for the one before it."""
    dtype: gl.constexpr = pixels.dtype
    seen = view(pixels.index(slot * (ROWS + 2) + row), dtype, [ROWS * 16, DEPTH], pixels.layout)
    taps = view(weights.index((slot * 4 + matrix) * SPREAD), dtype, [64, DEPTH], weights.layout)
    acc = warpgroup_mma(taps, seen.permute((1, 0)), acc, is_async=True)
    return warpgroup_mma_wait(1, deps=(acc,))


@gluon.jit
def _plane_products(
    acc, pixels, weights, slot, empty, started, plane: gl.constexpr, GROUP: gl.constexpr,
    ROWS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, SPREAD: gl.constexpr, STRIDED: gl.constexpr,
):  # fmt: skip
    """A group's products with a box of the even or the odd rows, and the box before given back after the first.

    Of the rows of its own parity a row phase reads one tap, of the others two; with a stride both read the odd rows
    twice.
    """
    ALONE: gl.constexpr = plane == (0 if STRIDED else GROUP)
    ROW: gl.constexpr = plane if ALONE and not STRIDED else 0
    FIRST: gl.constexpr = 2 * GROUP if STRIDED else (1 if ALONE else 0)
    acc = _product(acc, pixels, weights, slot, ROW, FIRST, ROWS, DEPTH, SPREAD)
    mbarrier.arrive(empty.index((slot + STAGES - 1) % STAGES), count=1, pred=started)
    if not ALONE:
        SECOND: gl.constexpr = 2 * GROUP + 1 if STRIDED else 2
        acc = _product(acc, pixels, weights, slot, 1, SECOND, ROWS, DEPTH, SPREAD)
    return acc


@gluon.jit
def _correct(acc, ends, border, spot, shape, GROUP: gl.constexpr, SPREAD: gl.constexpr, PAIRED: gl.constexpr):
    """Add the border's corrections to acc [out, pixels]: a phase has one row and one column at the image's border."""
    _, _, channels = ends
    y0, x0, phase, o0 = spot
    height, width = shape
    OUT: gl.constexpr = acc.shape[0]
    layout: gl.constexpr = acc.type.layout
    row = gl.arange(0, OUT, layout=gl.SliceLayout(1, layout))
    pixel = gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, layout))
    b = phase + row // (OUT // SPREAD)
    order = row % (OUT // SPREAD)
    channel = o0 + (order // 16 * 16 + order % 8 * 2 + order // 8 % 2 if PAIRED else order)
    inside = channel < channels
    by_row = gl.load(border + (6 * GROUP + 1) * channels + channel, mask=inside, other=0.0)
    by_column = gl.load(border + (3 + 2 * b) * channels + channel, mask=inside, other=0.0)
    by_both = gl.load(border + (6 * GROUP + 2 * b) * channels + channel, mask=inside, other=0.0)
    on_row = (y0 + pixel // 16 == GROUP * (height - 1)).expand_dims(0)
    on_column = (x0 + pixel % 16).expand_dims(0) == (b * (width - 1)).expand_dims(1)
    at_row = gl.where(on_column, by_both.expand_dims(1), by_row.expand_dims(1))
    elsewhere = gl.where(on_column, by_column.expand_dims(1), 0.0)
    return acc + gl.where(on_row, at_row, elsewhere)


@gluon.jit
def _write(
    y, boxes, staging, image, y0, x0, phase, o0,
    GROUP: gl.constexpr, ROWS: gl.constexpr, SPREAD: gl.constexpr,
):  # fmt: skip
    """Y [64, pixels] to one or two column phases, an eighth of its rows at a time."""
    dtype: gl.constexpr = boxes.dtype
    PART: gl.constexpr = ROWS * 2
    halves = halves_of(y)
    for half in gl.static_range(2):
        quarters = halves_of(halves[half])
        for quarter in gl.static_range(2):
            eighths = halves_of(quarters[quarter])
            for slot in gl.static_range(2):
                first = (2 * GROUP + slot) * SPREAD
                stage(eighths[slot], view(staging.index(first), dtype, [PART, 64], staging.layout), dtype)
                row = y0 + (4 * half + 2 * quarter + slot) * (ROWS // 8)
                for across in gl.static_range(SPREAD):
                    box = view(staging.index(first + across), dtype, boxes.block_shape, boxes.layout)
                    store_box(boxes, [image, row, x0, phase + across, o0], box)


@gluon.jit
def _multiply(
    GROUP: gl.constexpr, out_boxes, pixels, weights, staging, bars, geometry, ends, border, shape,
    ROWS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, SPREAD: gl.constexpr, STRIDED: gl.constexpr,
    FULL: gl.constexpr, PAIRED: gl.constexpr, ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr,
    BORDER: gl.constexpr,
):  # fmt: skip
    """A group of warps: its row phase, or its block of 64 channels, of every tile of this program."""
    full, empty = bars
    _, _, _, tiles, small_chunks, full_chunks = geometry
    dtype: gl.constexpr = pixels.dtype
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, ROWS * 16, 256 // dtype.primitive_bitwidth]
    )
    turn = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        image, y0, x0, phase, o0 = place(tile, geometry, ROWS, SPREAD, STRIDED)
        o0 += 64 * GROUP if STRIDED else 0
        factor, shift = load_channels(ends, o0, SCALED, PAIRED, 64, layout, SPREAD)
        acc = gl.zeros([64, ROWS * 16], gl.float32, layout)
        begin = turn
        if not STRIDED:
            for _ in range(small_chunks * (1 + SPREAD)):
                slot = turn % STAGES
                mbarrier.wait(full.index(slot), turn // STAGES & 1)
                acc = _product(acc, pixels, weights, slot, GROUP, 2 * GROUP, ROWS, DEPTH, SPREAD)
                # Only this box's product is on its way: the box before is done with.
                mbarrier.arrive(empty.index((slot + STAGES - 1) % STAGES), count=1, pred=turn > begin)
                acc = _product(acc, pixels, weights, slot, GROUP + 1, 2 * GROUP + 1, ROWS, DEPTH, SPREAD)
                turn += 1
        if FULL:
            for _ in range(full_chunks * (2 + SPREAD)):
                for plane in gl.static_range(2):
                    slot = turn % STAGES
                    mbarrier.wait(full.index(slot), turn // STAGES & 1)
                    acc = _plane_products(
                        acc, pixels, weights, slot, empty, turn > begin, plane, GROUP, ROWS, DEPTH, STAGES, SPREAD,
                        STRIDED,
                    )  # fmt: skip
                    turn += 1
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index((turn - 1) % STAGES), count=1)
        if BORDER:
            if SCALED:
                acc = acc * factor.expand_dims(1)
            height, width = shape
            if (y0 == 0) | (x0 == 0) | (y0 + ROWS >= height) | (x0 + 16 >= width):
                acc = _correct(acc, ends, border, (y0, x0, phase, o0), shape, GROUP, SPREAD, PAIRED)
        y = finish(acc, factor, shift, SCALED and not BORDER, ACTIVATION, SLOPE, PAIRED)
        _write(y, out_boxes, staging, image, y0, x0, phase, o0, GROUP, ROWS, SPREAD)
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "height", "width", "channels", "tiles_y", "tiles_x", "tiles_out", "tiles", "small_chunks", "full_chunks"
    ]
)  # fmt: skip
def _polyphase_gluon(
    small_boxes, small_last, small_taps, even_boxes, even_last, odd_boxes, odd_last, full_taps, even_out, odd_out,
    scale, bias, border,
    height, width, channels, tiles_y, tiles_x, tiles_out, tiles, small_chunks, full_chunks,
    ROWS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, SPREAD: gl.constexpr, STRIDED: gl.constexpr,
    FULL: gl.constexpr, PAIRED: gl.constexpr, ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr,
    BORDER: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Read small [N, h, w, in] and the rows of full as [N, h, w, 2, skip], store rows of [N, h, w, 2, channels]."""
    dtype: gl.constexpr = small_boxes.dtype
    swizzled: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS * 16, DEPTH], dtype)
    pixels = gl.allocate_shared_memory(dtype, [STAGES * (ROWS + 2), 16, DEPTH], swizzled)
    weights = gl.allocate_shared_memory(dtype, [STAGES * 4 * SPREAD, 64 // SPREAD, DEPTH], swizzled)
    out_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS * 2, 64 // SPREAD], even_out.dtype)
    staging = gl.allocate_shared_memory(even_out.dtype, [4 * SPREAD, ROWS * 2, 64 // SPREAD], out_layout)
    bars = (barriers(STAGES), barriers(STAGES, 2))
    fence_async_shared()
    small = (small_boxes, small_last, small_taps)
    planes = ((even_boxes, even_last, full_taps), (odd_boxes, odd_last, full_taps))
    geometry = (tiles_y, tiles_x, tiles_out, tiles, small_chunks, full_chunks)
    to_multiply = (pixels, weights, staging, bars, geometry, (scale, bias, channels), border, (height, width))
    LOAD: gl.constexpr = (ROWS, DEPTH, STAGES, SPREAD, STRIDED, FULL, PAIRED)
    MULTIPLY: gl.constexpr = (
        ROWS, DEPTH, STAGES, SPREAD, STRIDED, FULL, PAIRED, ACTIVATION, SLOPE, SCALED, BORDER
    )  # fmt: skip
    gl.warp_specialize([
        (_multiply, (0, even_out) + to_multiply + MULTIPLY),
        (_multiply, (1, odd_out) + to_multiply + MULTIPLY),
        (load, (small, planes, pixels, weights, bars, geometry) + LOAD),
    ], [num_warps, 4], [232, 40])  # fmt: skip


def launch(operands: Operands, tile: Tile) -> None:
    """Queue the phases of checked operands."""
    epilogue, out = operands.epilogue, required(operands.outputs.out)
    batch, height, width = operands.grid
    spread = spread_of(operands)
    across, block = (1, 128) if operands.strided else (2 // spread, 64 // spread)
    tiles_y, tiles_x, tiles_out = -(-height // tile.rows), -(-width // COLS), -(-operands.outer // block)
    tiles = batch * tiles_y * tiles_x * tiles_out * across
    paired = operands.sources[0][1].dtype == torch.float8_e4m3fn and operands.outer % 16 == 0
    full = planes_of(operands, tile, spread, paired)
    small = small_of(operands, tile, spread, paired)
    stored = out.unsqueeze(3) if operands.strided else out.unflatten(2, (-1, 2))
    rows = (stored, stored) if operands.strided else (stored[:, ::2], stored[:, 1::2])
    part, boxed = [1, tile.rows // 8, COLS, 1, 64 // spread], [tile.rows * 2, 64 // spread]
    chunks = [0 if map_ is None else -(-map_.shape[3] // tile.depth) for map_ in (operands.small, operands.full)]
    _polyphase_gluon[min(tiles, multiprocessors(out.device)),](
        *(small or full[2:]), *(full or (*small[:2], *small)), *(boxes_of(half, part, boxed) for half in rows),
        epilogue.bias if epilogue.scale is None else epilogue.scale, epilogue.bias,
        epilogue.bias if operands.border is None else operands.border,
        height, width, operands.outer, tiles_y, tiles_x, tiles_out, tiles, *chunks,
        ROWS=tile.rows, DEPTH=tile.depth, STAGES=tile.stages, SPREAD=spread, STRIDED=operands.strided,
        FULL=operands.full is not None, PAIRED=paired, ACTIVATION=epilogue.activation.expression,
        SLOPE=epilogue.activation.slope, SCALED=epilogue.scale is not None, BORDER=operands.border is not None,
        num_warps=4,
    )  # fmt: skip


def spread_of(operands: Operands) -> int:
    """How many column phases the 64 rows of a product hold."""
    return 2 if operands.outer <= 32 and not operands.strided else 1


def small_of(operands: Operands, tile: Tile, spread: int, paired: bool) -> list[TensorDescriptor]:
    """Boxes of the small map, a tile's rows and its last two, and of its taps; none without the map."""
    small, weight = operands.small, operands.small_weight
    if small is None or weight is None:
        return []
    boxed = [tile.rows * COLS, tile.depth]
    rows = [boxes_of(small, [1, count, COLS, tile.depth], boxed) for count in (tile.rows, 2)]
    return [*rows, weight_boxes_of(weight, 64 // spread, boxed, paired)]


def planes_of(operands: Operands, tile: Tile, spread: int, paired: bool) -> list[TensorDescriptor]:
    """Boxes of the full map seen as [N, h, w, 2, skip]: a tile's even rows, its last one, the odd ones, and of its taps.

    None without the map.
    """
    full, weight = operands.full, operands.full_weight
    if full is None or weight is None:
        return []
    boxed = [tile.rows * COLS, tile.depth]
    planes = [full[:, half::2].unflatten(2, (-1, 2)) for half in range(2)]
    rows = [boxes_of(plane, [1, count, COLS, 1, tile.depth], boxed) for plane in planes for count in (tile.rows, 1)]
    return [*rows, weight_boxes_of(weight, 64 // spread, boxed, paired)]


def candidates(operands: Operands) -> Iterator[Tile]:
    """The tiles worth measuring, the likeliest first."""
    size = operands.sources[0][0].element_size()
    channels = max(source.shape[3] for source, _ in operands.sources)
    widest = min(128 // size, max(32 // size, next_power_of_two(channels)))
    for rows, depth in ((16, widest), (8, widest), (16, widest // 2)):
        stages = (SHARED_BYTES - 4 * rows * 2 * 64 * size) // (((rows + 2) * COLS + 4 * 64) * depth * size)
        if depth * size >= 32:
            yield Tile(rows, depth, min(stages, 8))
