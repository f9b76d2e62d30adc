"""The phases of `polyphase` by two groups of warps that share every box, in Gluon.

Group 0 makes the output's even rows, group 1 the odd ones, of one column phase. Both read the same boxes: of the small
map one for each horizontal offset, two rows taller than the tile; of the full map one of a parity plane, one row
taller. A box is given back when both have read it: that is the only order between them. With at most 32 output channels
the rows of a product hold both column phases of them; a tap that one of the two lacks is loaded from outside the
weight, where TMA reads zeros.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_wait

from pipeline.kernels.common import gluon_epilogue
from pipeline.kernels.common.epilogue import check_blocks
from pipeline.kernels.common.nhwc import multiprocessors, next_power_of_two
from pipeline.kernels.common.program import DEPENDENT, by_slice, on_grid
from pipeline.kernels.common.tma import arguments, barriers, box_of, boxes_of, reach, store_box, view, weight_boxes_of
from pipeline.kernels.polyphase import polyphase_loads as loads
from pipeline.kernels.polyphase.polyphase_triton import Operands

COLS = 16  # pixels of a row of a tile: two of the eight rows over which TMA's swizzle repeats


def spread_of(operands: Operands) -> int:
    """Return how many column phases the 64 rows of a product hold."""
    return 2 if operands.outer <= 32 and not operands.strided else 1


def split_of(operands: Operands) -> bool:
    """Return whether the groups of warps take half of a tile's rows each."""
    return operands.strided and operands.outer <= 64


def may_hold(operands: Operands) -> bool:
    """Return whether weights may stay in shared memory: of volumes it was never run, and no tap may be left out."""
    return operands.deep == 1 and not operands.window_of_3


def held_blocks(operands: Operands, depth: int) -> int:
    """Return how many blocks [64 / spread, depth] of taps stay, of a phase and a block of channels."""
    small, full = operands.small, operands.full
    small_chunks = 0 if small is None else -(-small.shape[3] // depth)
    full_chunks = 0 if full is None else -(-full.shape[3] // depth)
    if spread_of(operands) == 2:
        return loads.SMALL_BLOCKS * small_chunks + loads.FULL_BLOCKS * full_chunks
    return 4 * 2 * small_chunks + 3 * 3 * full_chunks * (2 if operands.strided and not split_of(operands) else 1)


def boxes_of_maps(operands: Operands, rows: int, depth: int, paired: bool) -> list[list[TensorDescriptor]]:
    """Boxes of the small map and of the full one, none of a map that isn't there, and of their taps.

    Of the small map they are of a tile's rows and its last two; of the full one [N, h, w, 2, skip] of the even rows, a
    tile's and its last, and of the odd ones.
    """
    found: list[list[TensorDescriptor]] = []
    boxed, full = [rows * COLS, depth], operands.images
    planes = [] if full is None else [full[:, half::2].unflatten(2, (-1, 2)) for half in range(2)]
    maps = ([] if operands.small is None else [operands.small], operands.small_weight), (planes, operands.full_weight)
    for last, (views, weight) in zip((2, 1), maps, strict=True):
        boxes = [(view, [1, count, COLS, *[1] * (view.ndim - 4), depth]) for view in views for count in (rows, last)]
        taps = [] if weight is None else [weight_boxes_of(weight, 64 // spread_of(operands), boxed, paired)]
        found.append([*(boxes_of(view, box, boxed) for view, box in boxes), *taps])
    return found


_SMALL_PITCH, _FULL_PITCH = gl.constexpr(loads.SMALL_PITCH), gl.constexpr(loads.FULL_PITCH)


@dataclass(frozen=True)
class Tile:
    """A cut of the work: `rows` × 16 pixels of each of two phases, `depth` channels a step, `stages` on their way.

    A group stores its rows in 4 or 8 `parts`. The second group begins `lag` steps after the first: else both would
    store at once, and no warp multiply. Where weights are `held`, a program loads those of its phase and channels once.
    """

    kernel: ClassVar[str] = "polyphase_gluon"
    rows: int
    depth: int
    stages: int
    parts: int
    lag: int = 1
    held: bool = False


@gluon.jit
def _write(
    y, boxes, staging, image, y0, x0, phase, o0, GROUP: gl.constexpr, PARTS: gl.constexpr, STORES: gl.constexpr
):  # fmt: skip
    """Y [64, pixels] to one or two column phases, in quarters or eighths: while TMA stores one, the next is made."""
    ROWS: gl.constexpr = y.shape[1] // 16
    halves = gluon_epilogue.halves_of(y)
    for half in gl.static_range(2):
        quarters = gluon_epilogue.halves_of(halves[half])
        for quarter in gl.static_range(2):
            row = y0 + (2 * half + quarter) * (ROWS // 4)
            if PARTS == 4:
                _store_part(quarters[quarter], boxes, staging, 2 * GROUP + quarter, (image, row, x0, phase, o0), STORES)
            else:
                eighths = gluon_epilogue.halves_of(quarters[quarter])
                for slot in gl.static_range(2):
                    spot = (image, row + slot * (ROWS // 8), x0, phase, o0)
                    _store_part(eighths[slot], boxes, staging, 2 * GROUP + slot, spot, STORES)


@gluon.jit
def _store_part(part, boxes, staging, slot, spot, STORES: gl.constexpr):
    """Round a part [64, pixels] into a slot of the staging memory and store it from there, in boxes."""
    image, row, x0, phase, o0 = spot
    dtype: gl.constexpr = boxes.dtype
    SHAPE: gl.constexpr = [part.shape[1], 64]
    LAYOUT: gl.constexpr = staging.layout
    gluon_epilogue.stage(part, reach(box_of(staging, slot, STORES), 0, STORES, dtype, SHAPE, LAYOUT), dtype)
    for across in gl.static_range(STORES):
        box = view(staging.index(slot * STORES + across), dtype, boxes.block_shape, boxes.layout)
        store_box(boxes, [image, row, x0, phase + across, o0], box)


@gluon.jit
def _multiply(
    GROUP: gl.constexpr, out_boxes, pixels, weights, staging, bars, geometry, ends, border, shape, statistics, lag,
    DEEP: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, HELD: gl.constexpr,
    SPREAD: gl.constexpr, STRIDED: gl.constexpr, SPLIT: gl.constexpr, SPARSE: gl.constexpr, FULL: gl.constexpr,
    PAIRED: gl.constexpr, PARTS: gl.constexpr, STORES: gl.constexpr, ACTIVATION: gl.constexpr, SLOPE: gl.constexpr,
    SCALED: gl.constexpr, BORDER: gl.constexpr, COUNTS: gl.constexpr,
):  # fmt: skip
    """Run a group of warps: its row phase, block of channels or half of the rows of every tile of this program."""
    full, empty, started, held = bars
    _, _, _, tiles, small_chunks, full_chunks = geometry
    PIXELS: gl.constexpr = ROWS * 16 // (2 if SPLIT else 1)
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, PIXELS, 256 // pixels.dtype.primitive_bitwidth]
    )
    gdc_wait()
    if GROUP == 1:
        mbarrier.wait(started.index(0), 0)
    if HELD > 0:
        mbarrier.wait(held.index(0), 0)
    mark = lag  # where the other group may begin, until it has
    turn = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        image, y0, x0, phase, o0 = loads.place(tile, geometry, ROWS, SPREAD, STRIDED, SPLIT)
        o0 += 64 * GROUP if STRIDED and not SPLIT else 0
        factor, shift = gluon_epilogue.load_channels(ends, o0, SCALED, PAIRED, 64, layout, SPREAD)
        acc = gl.zeros([64, PIXELS], gl.float32, layout)
        begin, small_steps = turn, 0
        if not STRIDED:
            _, shifts = loads.shifts_of(phase, SPREAD, SPARSE)
            small_steps = small_chunks * shifts
            for step in range(small_steps):
                slot = turn % STAGES
                mbarrier.wait(full.index(slot), turn // STAGES & 1)
                acc = loads.small_products(
                    acc, pixels, weights, slot, loads.small_base(slot, step, HELD, SPREAD), empty, turn > begin, GROUP,
                    ROWS, DEPTH, STAGES, loads.pitch_of(HELD, SPREAD, _SMALL_PITCH), SPARSE,
                )  # fmt: skip
                turn += 1
                if GROUP == 0:
                    mbarrier.arrive(started.index(0), count=1, pred=turn == mark)
        if FULL:
            for step in range(DEEP * full_chunks * (2 + SPREAD)):
                for plane in gl.static_range(2):
                    slot = turn % STAGES
                    mbarrier.wait(full.index(slot), turn // STAGES & 1)
                    acc = loads.plane_products(
                        acc, pixels, weights, slot,
                        loads.plane_base(slot, step, small_steps, plane, HELD, SPREAD, STRIDED, SPLIT), empty,
                        turn > begin, plane, GROUP, ROWS, DEPTH, STAGES, loads.pitch_of(HELD, SPREAD, _FULL_PITCH),
                        STRIDED, SPLIT,
                    )  # fmt: skip
                    turn += 1
                    if GROUP == 0:
                        mbarrier.arrive(started.index(0), count=1, pred=turn == mark)
        if GROUP == 0:
            mbarrier.arrive(started.index(0), count=1, pred=turn < mark)
            mark = -1
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index((turn - 1) % STAGES), count=1)
        height, width = shape
        if BORDER:
            if SCALED:
                acc = acc * factor.expand_dims(1)
            if (y0 == 0) | (x0 == 0) | (y0 + ROWS >= height) | (x0 + 16 >= width):
                acc = loads.corrected(acc, ends, border, (y0, x0, phase, o0), shape, GROUP, SPREAD, PAIRED)
        active = gluon_epilogue.activated(acc, factor, shift, SCALED and not BORDER, ACTIVATION, SLOPE)
        y0 += GROUP * (ROWS // 2) if SPLIT else 0
        if COUNTS:
            map_number = image if STRIDED else 4 * image + 2 * GROUP + phase
            gluon_epilogue.write_statistics(
                active, statistics, map_number, y0, x0, o0, height, width, ends[2], PIXELS // 16, 16, PAIRED, SPREAD
            )
        _write(
            gluon_epilogue.in_order(active, PAIRED), out_boxes, staging, image, y0, x0, phase, o0, GROUP, PARTS, STORES
        )
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "height", "width", "channels", "tiles_y", "tiles_x", "tiles_out", "tiles", "small_chunks", "full_chunks", "lag",
        "slices",
    ]
)  # fmt: skip
def _polyphase_gluon(
    small_boxes, small_last, small_taps, even_boxes, even_last, odd_boxes, odd_last, full_taps, even_out, odd_out,
    scale, bias, border, statistics, height, width, channels, tiles_y, tiles_x, tiles_out, tiles, small_chunks,
    full_chunks, lag, slices, DEEP: gl.constexpr, STEP: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr,
    STAGES: gl.constexpr, HELD: gl.constexpr, SPREAD: gl.constexpr, STRIDED: gl.constexpr, SPLIT: gl.constexpr,
    SPARSE: gl.constexpr, FULL: gl.constexpr, PAIRED: gl.constexpr, PARTS: gl.constexpr, STORES: gl.constexpr,
    ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr, BORDER: gl.constexpr, EARLY: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """Read small [N, h, w, in], rows of full [N, h, w, 2, skip], or volumes' slices; store [N, h, w, 2, channels]."""
    dtype: gl.constexpr = small_boxes.dtype
    swizzled: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS * 16, DEPTH], dtype)
    pixels = gl.allocate_shared_memory(dtype, [STAGES * (ROWS + 2), 16, DEPTH], swizzled)
    BLOCKS: gl.constexpr = HELD if HELD > 0 else STAGES * 4 * SPREAD
    weights = gl.allocate_shared_memory(dtype, [BLOCKS, 64 // SPREAD, DEPTH], swizzled)
    PART: gl.constexpr = ROWS * 16 // PARTS // (2 if SPLIT else 1)
    out_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([PART, 64 // STORES], even_out.dtype)
    staging = gl.allocate_shared_memory(even_out.dtype, [4 * STORES, PART, 64 // STORES], out_layout)
    bars = (barriers(STAGES), barriers(STAGES, 2), barriers(1), barriers(1))
    fence_async_shared()
    small = (small_boxes, small_last, small_taps)
    planes = ((even_boxes, even_last, full_taps), (odd_boxes, odd_last, full_taps))
    geometry = (tiles_y, tiles_x, tiles_out, tiles, small_chunks, full_chunks)
    COUNTS: gl.constexpr = statistics is not None
    counted = statistics if COUNTS else bias  # the tuples hold no None
    ends = (scale, bias, channels)
    to_multiply = (pixels, weights, staging, bars, geometry, ends, border, (height, width), counted, lag)
    LOAD: gl.constexpr = (DEEP, STEP, ROWS, DEPTH, STAGES, HELD, SPREAD, STRIDED, SPLIT, SPARSE, FULL, PAIRED, EARLY)
    MULTIPLY: gl.constexpr = (
        DEEP, ROWS, DEPTH, STAGES, HELD, SPREAD, STRIDED, SPLIT, SPARSE, FULL, PAIRED, PARTS, STORES, ACTIVATION,
        SLOPE, SCALED, BORDER, COUNTS,
    )  # fmt: skip
    gl.warp_specialize([
        (_multiply, arguments((0, even_out) + to_multiply, MULTIPLY)),
        (_multiply, arguments((1, odd_out) + to_multiply, MULTIPLY)),
        (loads.load, arguments((small, planes, pixels, weights, bars, geometry, slices), LOAD)),
    ], [num_warps, 4], [232, 40])  # fmt: skip


def launch(operands: Operands, tile: Tile) -> None:
    """Queue the phases of checked operands; raise ValueError where weights can't be `held`."""
    if tile.held and not may_hold(operands):
        raise ValueError("held must be False of volumes, and where taps are left out (window_of_3)")
    spread, split = spread_of(operands), split_of(operands)
    check_blocks(operands.epilogue, tile.rows // (2 if split else 1), COLS)
    epilogue, out = operands.epilogue, by_slice(operands.outputs.required, operands.made)
    batch, height, width = operands.grid
    across, block = (1, 64 if split else 128) if operands.strided else (2 // spread, 64 // spread)
    tiles_y, tiles_x, tiles_out = -(-height // tile.rows), -(-width // COLS), -(-operands.outer // block)
    tiles = batch * tiles_y * tiles_x * tiles_out * across
    paired = operands.sources[0][1].dtype == torch.float8_e4m3fn and operands.outer % 16 == 0
    small, full = boxes_of_maps(operands, tile.rows, tile.depth, paired)
    # Where a product's 64 rows are two neighbouring pixels' channels there are half as many rows to store.
    stores = 1 if spread == 2 and out.shape[3] == out.stride(2) == 32 else spread
    stored = out.unsqueeze(3) if operands.strided else out.unflatten(2, (-1, 2))
    stored = stored.flatten(3).unsqueeze(3) if stores < spread else stored
    rows = (stored, stored) if operands.strided else (stored[:, ::2], stored[:, 1::2])
    part = [1, tile.rows // tile.parts // (2 if split else 1), COLS, 1, 64 // stores]
    boxed = [part[1] * COLS, 64 // stores]
    chunks = [0 if map_ is None else -(-map_.shape[3] // tile.depth) for map_ in (operands.small, operands.full)]
    programs = multiprocessors(out.device)
    if tile.held:  # those of one phase and block of channels: all of a program's tiles must be of them
        programs = programs // (across * tiles_out) * (across * tiles_out)
    if programs == 0:
        raise ValueError(f"weights that stay need a multiprocessor for each of {across * tiles_out} parts of an image")
    on_grid(_polyphase_gluon, min(tiles, programs))(
        *(small or full[2:]), *(full or (*small[:2], *small)), *(boxes_of(half, part, boxed) for half in rows),
        epilogue.factors, epilogue.bias, epilogue.bias if operands.border is None else operands.border,
        operands.outputs.statistics, height, width, operands.outer, tiles_y, tiles_x, tiles_out, tiles, *chunks,
        tile.lag, operands.made, DEEP=operands.deep, STEP=operands.step, ROWS=tile.rows, DEPTH=tile.depth,
        STAGES=tile.stages, HELD=held_blocks(operands, tile.depth) if tile.held else 0, SPREAD=spread,
        STRIDED=operands.strided, SPLIT=split, SPARSE=operands.window_of_3, FULL=operands.full is not None,
        PAIRED=paired, PARTS=tile.parts, STORES=stores, SCALED=epilogue.scale is not None,
        BORDER=operands.border is not None, EARLY=epilogue.early, num_warps=4, **epilogue.constants, **DEPENDENT,
    )  # fmt: skip


SHARED_BYTES = 227 * 1024 - 2048  # what one program may have on compute capability 9.0, less the barriers


def candidates(operands: Operands) -> Iterator[Tile]:
    """Yield tiles worth measuring, likeliest first."""
    size = operands.sources[0][0].element_size()
    # A step deeper than a source's channels multiplies zeros, one less deep moves more and shorter rows.
    channels = [next_power_of_two(source.shape[3]) for source, _ in operands.sources]
    least, most = (min(128 // size, max(32 // size, count)) for count in (min(channels), max(channels)))
    other = most if most > least else least // 2
    for rows, depth in ((16, least), (8, least), (16, other)):
        yield from _fitting(operands, rows, depth, held=False)
    if may_hold(operands):
        for rows in (16, 8):
            yield from _fitting(operands, rows, least, held=True)


def _fitting(operands: Operands, rows: int, depth: int, *, held: bool) -> Iterator[Tile]:
    """Return a tile with all boxes that fit, in quarters if three fit only then; None if fewer than three fit."""
    size, stored = operands.sources[0][0].element_size(), operands.outputs.required.element_size()
    free = SHARED_BYTES - (64 // spread_of(operands) * held_blocks(operands, depth) * depth * size if held else 0)
    step = ((rows + 2) * COLS + (0 if held else 4 * 64)) * depth * size
    # Half of eight rows is no block of the statistics.
    halved = operands.epilogue.statistics and split_of(operands) and rows < 16
    for parts in (4, 8):
        stages = (free - COLS * 64 * 4 * stored * rows // parts) // step
        if depth * size >= 32 and stages > 2 and not halved:
            yield Tile(rows, depth, min(stages, 8), parts, held=held)
            return
