"""The 3×3 convolution of `conv3x3`, for levels where reading the same pixels nine times is what takes the time.

The three vertical taps of a shift are row offsets into one box (`docs/kernels.md`). A row of 16 pixels is a multiple of
the 8 rows over which TMA's swizzle repeats, so that the offset needs no other swizzle. One warp loads; two groups of
warps multiply and write in turns, or one does. Where a map has too few tiles for all multiprocessors, each program
sums a part of the input channels (split-K), and `add_parts` adds the sums.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pipeline.kernels.common import gluon_epilogue
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.nhwc import multiprocessors, next_power_of_two, shared_bytes
from pipeline.kernels.common.program import DEPENDENT, by_slice, on_grid
from pipeline.kernels.common.tma import arguments, barriers, box_of, boxes_of, load_box, reach, view, weight_boxes_of
from pipeline.kernels.conv3x3.conv3x3_triton import Operands, add_parts


@gluon.jit
def place(tile, tiles_y, tiles_x, tiles_out, ROWS: gl.constexpr, COLS: gl.constexpr, OUT: gl.constexpr):
    """Image, first row, first column and first channel of a tile; blocks of channels come one after another."""
    spot = tile // tiles_out
    return spot // tiles_x // tiles_y, spot // tiles_x % tiles_y * ROWS, spot % tiles_x * COLS, tile % tiles_out * OUT


@gluon.jit
def load_boxes(
    boxes, last_rows, weight_boxes, residual_boxes, pixels, weights, staging, bars, geometry,
    DEEP: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, OUT: gl.constexpr, DEPTH: gl.constexpr,
    BOXES: gl.constexpr, TAPS: gl.constexpr, HELD: gl.constexpr, GROUPS: gl.constexpr, PAIRED: gl.constexpr,
    RESIDUAL: gl.constexpr, EARLY: gl.constexpr, WINDOW: gl.constexpr, EDGE: gl.constexpr,
):  # fmt: skip
    """Run the loading warp: a tall box and a column of weights for each tile, chunk and shift; last the residual."""
    box_full, box_empty, tap_full, _, _, added_full, added_empty = bars
    tiles_y, tiles_x, tiles_out, tiles, chunks, slices, batch = geometry
    dtype: gl.constexpr = boxes.dtype
    BOX: gl.constexpr = boxes.block_shape
    LAST: gl.constexpr = last_rows.block_shape
    LAYOUT: gl.constexpr = boxes.layout
    BYTES: gl.constexpr = DEPTH * dtype.primitive_bitwidth // 8
    STEP: gl.constexpr = 16 if PAIRED else 1
    LOADED: gl.constexpr = 1 if EARLY else 0
    TOGETHER: gl.constexpr = 2 if DEEP % 2 == 0 else 1  # slices
    if not EARLY:
        gdc_wait()
    if TAPS == 0:
        mbarrier.expect(tap_full.index(0), HELD * OUT * BYTES)
        block = gl.program_id(0) % tiles_out * OUT // STEP
        for tap in range(9 * DEEP):
            for chunk in range(chunks):
                held = view(weights.index(tap * chunks + chunk), dtype, weight_boxes.block_shape, weight_boxes.layout)
                load_box(weight_boxes, [tap, block, 0, 0, chunk * DEPTH], tap_full.index(0), held)
    elif EARLY:
        image, _, _, o0 = place(gl.program_id(0), tiles_y, tiles_x, tiles_out, ROWS, COLS, OUT)
        c0 = image // batch * chunks * DEPTH
        _load_taps(weight_boxes, weights, bars, 0, 0, o0 // STEP, c0, OUT * BYTES, TAPS, WINDOW)
    if EARLY:
        gdc_wait()
    turn = 0
    count = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        numbered, y0, x0, o0 = place(tile, tiles_y, tiles_x, tiles_out, ROWS, COLS, OUT)
        image, part = numbered % batch, numbered // batch
        for deep in gl.static_range(DEEP):
            for chunk in range(part * chunks, (part + 1) * chunks):
                for shift in range(WINDOW):
                    slot = turn % BOXES
                    full = box_full.index(slot)
                    mbarrier.wait(box_empty.index(slot), (turn // BOXES & 1) ^ 1)
                    mbarrier.expect(full, (ROWS + WINDOW - 1) * COLS * BYTES)
                    box = box_of(pixels, slot, ROWS + WINDOW - 1)
                    first = reach(box, 0, ROWS, dtype, BOX, LAYOUT)
                    rest = reach(box, ROWS, WINDOW - 1, dtype, LAST, LAYOUT)
                    left, c0 = x0 + shift - EDGE, chunk * DEPTH
                    if DEEP == 1:
                        load_box(boxes, [image, y0 - EDGE, left, c0], full, first)
                        load_box(last_rows, [image, y0 + ROWS - EDGE, left, c0], full, rest)
                    else:
                        volume, z = image // slices, image % slices * TOGETHER + deep - EDGE
                        load_box(boxes, [volume, z, y0 - EDGE, left, c0], full, first)
                        load_box(last_rows, [volume, z, y0 + ROWS - EDGE, left, c0], full, rest)
                    if TAPS > 0:  # noqa: SIM102 - known when compiling, the next is not
                        if turn >= LOADED:
                            tap = WINDOW * WINDOW * deep + shift
                            _load_taps(
                                weight_boxes, weights, bars, turn, tap, o0 // STEP, c0, OUT * BYTES, TAPS, WINDOW
                            )  # fmt: skip
                    turn += 1
        if RESIDUAL is not None:
            group = count % GROUPS
            ready = added_full.index(group)
            mbarrier.wait(added_empty.index(group), (count // GROUPS & 1) ^ 1)
            mbarrier.expect(ready, ROWS * COLS * OUT * residual_boxes.dtype.primitive_bitwidth // 8)
            for quarter in gl.static_range(4):
                buffer = staging.index(4 * group + quarter)
                held = view(buffer, RESIDUAL, residual_boxes.block_shape, residual_boxes.layout)
                load_box(residual_boxes, [image, y0 + quarter * (ROWS // 4), x0, o0], ready, held)
            count += 1
    gdc_launch_dependents()


@gluon.jit
def _load_taps(
    boxes, weights, bars, turn, tap, block, c0, BYTES: gl.constexpr, TAPS: gl.constexpr, WINDOW: gl.constexpr
):  # fmt: skip
    """Load the weights of a column of taps from `tap` on, each of the given bytes, once there is room."""
    _, _, full, empty, _, _, _ = bars
    for down in gl.static_range(WINDOW):
        spot = (WINDOW * turn + down) % TAPS
        mbarrier.wait(empty.index(spot), ((WINDOW * turn + down) // TAPS & 1) ^ 1)
        mbarrier.expect(full.index(spot), BYTES)
        held = view(weights.index(spot), boxes.dtype, boxes.block_shape, boxes.layout)
        load_box(boxes, [tap + WINDOW * down, block, 0, 0, c0], full.index(spot), held)


@gluon.jit
def products(
    acc, pixels, weights, bars, count, chunks, GROUP: gl.constexpr, DEEP: gl.constexpr, ROWS: gl.constexpr,
    COLS: gl.constexpr, DEPTH: gl.constexpr, BOXES: gl.constexpr, TAPS: gl.constexpr, GROUPS: gl.constexpr,
    WINDOW: gl.constexpr,
):  # fmt: skip
    """Add a tile's products to acc [out, pixels], by one group of warps; the tile is the program's `count`-th."""
    box_full, box_empty, tap_full, tap_empty, pingpong, _, _ = bars
    dtype: gl.constexpr = pixels.dtype
    LAYOUT: gl.constexpr = pixels.layout
    SHAPE: gl.constexpr = [ROWS * COLS, DEPTH]
    turn = count * WINDOW * DEEP * chunks
    # A barrier tells this phase from the one before, not from the one before that: a group that ran ahead of the
    # other would take an old box for its own. So the other's loads have arrived before this one's are waited for.
    if GROUPS == 2:
        mbarrier.wait(pingpong.index(GROUP), (count // 2 & 1) ^ (1 - GROUP))
    # Of a window of 5 a column alone is unrolled: 125 products would take a minute to compile.
    PLANES: gl.constexpr = DEEP if WINDOW == 3 else 1
    COLUMNS: gl.constexpr = WINDOW if WINDOW == 3 else 1
    for deep in gl.static_range(PLANES):
        for chunk in range(DEEP // PLANES * (WINDOW // COLUMNS) * chunks):
            for across in gl.static_range(COLUMNS):
                mbarrier.wait(box_full.index(turn % BOXES), turn // BOXES & 1)
                box = box_of(pixels, turn % BOXES, ROWS + WINDOW - 1)
                for down in gl.static_range(WINDOW):
                    if TAPS == 0:
                        taps = weights.index((9 * deep + 3 * down + across) * chunks + chunk)
                    else:
                        spot = (WINDOW * turn + down) % TAPS
                        mbarrier.wait(tap_full.index(spot), (WINDOW * turn + down) // TAPS & 1)
                        taps = weights.index(spot)
                    seen = reach(box, down, ROWS, dtype, SHAPE, LAYOUT)
                    acc = hopper.warpgroup_mma(taps, seen.permute((1, 0)), acc, is_async=True)
                    # Once only this tap's product is on its way, the one before it is done with its weights, and the
                    # first of a box shows that the box before is done with.
                    acc = hopper.warpgroup_mma_wait(1, deps=(acc,))
                    started = deep + chunk + across + down > 0
                    if TAPS > 0:
                        before = (WINDOW * turn + down + TAPS - 1) % TAPS
                        mbarrier.arrive(tap_empty.index(before), count=1, pred=started)
                    if down == 0:
                        mbarrier.arrive(box_empty.index((turn + BOXES - 1) % BOXES), count=1, pred=started)
                turn += 1
    if GROUPS == 2:
        mbarrier.arrive(pingpong.index(1 - GROUP), count=1)
    acc = hopper.warpgroup_mma_wait(0, deps=(acc,))
    if TAPS > 0:
        mbarrier.arrive(tap_empty.index((WINDOW * turn - 1) % TAPS), count=1)
    mbarrier.arrive(box_empty.index((turn - 1) % BOXES), count=1)
    return acc


@dataclass(frozen=True)
class Tile:
    """A cut of the work: `rows` × `cols` pixels and `out` channels for each group of warps, `depth` channels a step."""

    kernel: ClassVar[str] = "conv3x3_gluon"
    rows: int
    cols: int
    out: int
    depth: int
    boxes: int  # of pixels that are on their way or in use
    taps: int  # weight matrices [out, depth] that are; 0 keeps all of them in shared memory
    groups: int  # 2 groups of warps take every other tile each; 1 takes every one
    warps: int  # of each group: 4 for 64 × 256, 8 for twice that
    parts: int = 1  # into which the input channels are cut; a program sums one, in fp32


@gluon.jit
def _multiply(
    GROUP: gl.constexpr, head_staging, out_boxes, pooled_boxes, pixels, weights, staging, bars, geometry, ends, head,
    added, statistics, DEEP: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, OUT: gl.constexpr,
    DEPTH: gl.constexpr, BOXES: gl.constexpr, TAPS: gl.constexpr, HELD: gl.constexpr, GROUPS: gl.constexpr,
    CLASSES: gl.constexpr, ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr, WRITES: gl.constexpr,
    POOLS: gl.constexpr, PAIRED: gl.constexpr, SLOPED: gl.constexpr, RESIDUAL: gl.constexpr, COUNTS: gl.constexpr,
    WINDOW: gl.constexpr,
):  # fmt: skip
    """Run a group of warps: make every GROUPS-th tile of this program, from the first product to the store."""
    tiles_y, tiles_x, tiles_out, tiles, chunks, _, _ = geometry
    _, _, channels = ends
    _, _, _, height, width = head
    slopes, residual_scale = added
    _, _, tap_full, _, _, added_full, added_empty = bars
    TOGETHER: gl.constexpr = 2 if DEEP % 2 == 0 else 1  # slices
    STORED: gl.constexpr = OUT // TOGETHER
    WARPS: gl.constexpr = gl.num_warps()
    SPLIT_OUT: gl.constexpr = OUT // 64
    BUFFERS: gl.constexpr = 2 if RESIDUAL is None else 4
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0],
        warps_per_cta=[4 * SPLIT_OUT, WARPS // 4 // SPLIT_OUT],
        instr_shape=[16, ROWS * COLS if ROWS * COLS < 256 else 256, 256 // pixels.dtype.primitive_bitwidth],
    )
    gdc_wait()
    if TAPS == 0:
        mbarrier.wait(tap_full.index(0), 0)
    count = GROUP * 1
    for tile in range(gl.program_id(0) + GROUP * gl.num_programs(0), tiles, GROUPS * gl.num_programs(0)):
        image, y0, x0, o0 = place(tile, tiles_y, tiles_x, tiles_out, ROWS, COLS, OUT)
        factor, shift = gluon_epilogue.load_channels(ends, o0, SCALED, PAIRED, OUT, layout, 1, TOGETHER)
        steep = gluon_epilogue.load_slopes(slopes, channels, o0, PAIRED, OUT, layout, TOGETHER) if SLOPED else None
        acc = gl.zeros([OUT, ROWS * COLS], gl.float32, layout)
        acc = products(
            acc, pixels, weights, bars, count, chunks, GROUP, DEEP, ROWS, COLS, DEPTH, BOXES, TAPS, GROUPS, WINDOW
        )
        extra = None
        if RESIDUAL is not None:
            mbarrier.wait(added_full.index(GROUP), count // GROUPS & 1)
            extra = gluon_epilogue.load_residual(acc, staging, residual_scale, 4 * GROUP, RESIDUAL, PAIRED)
        active = acc
        if out_boxes.dtype != gl.float32:
            active = gluon_epilogue.activated(acc, factor, shift, SCALED, ACTIVATION, SLOPE, steep, extra)
        each = gluon_epilogue.two_slices(active) if TOGETHER == 2 else (active,)
        for part in gl.static_range(TOGETHER):
            number = TOGETHER * image + part
            if COUNTS:
                gluon_epilogue.write_statistics(
                    each[part], statistics, number, y0, x0, o0, height, width, channels, ROWS, COLS, PAIRED
                )  # fmt: skip
            y = gluon_epilogue.in_order(each[part], PAIRED)
            if WRITES:
                gluon_epilogue.write(
                    y, out_boxes, staging, number, y0, x0, o0, BUFFERS * GROUP, BUFFERS, ROWS, COLS, STORED
                )
        if POOLS:
            gluon_epilogue.write_pooled(y, pooled_boxes, staging, image, y0, x0, o0, BUFFERS * GROUP, ROWS, COLS, OUT)
        if CLASSES > 0:
            gluon_epilogue.write_logits(y, head, head_staging, image, y0, x0, COLS, CLASSES)
        if RESIDUAL is not None:
            tma.store_wait(0)
            mbarrier.arrive(added_empty.index(GROUP), count=1)
        count += GROUPS
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=[
        "residual_scale", "height", "width", "channels", "tiles_y", "tiles_x", "tiles_out", "tiles", "chunks", "slices",
        "batch",
    ]
)  # fmt: skip
def _conv3x3_gluon(
    boxes, last_rows, weight_boxes, out_boxes, pooled_boxes, scale, bias, mixes, mix_bias, logits, slopes,
    residual_boxes, residual_scale, statistics, height, width, channels, tiles_y, tiles_x, tiles_out, tiles, chunks,
    slices, batch, DEEP: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr, OUT: gl.constexpr, DEPTH: gl.constexpr,
    BOXES: gl.constexpr, TAPS: gl.constexpr, HELD: gl.constexpr, GROUPS: gl.constexpr, CLASSES: gl.constexpr,
    ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr, WRITES: gl.constexpr, POOLS: gl.constexpr,
    PAIRED: gl.constexpr, EARLY: gl.constexpr, WINDOW: gl.constexpr, EDGE: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Read x [N, H, W, IN], or [N, slices, H, W, IN] with DEEP > 1; an even one makes two slices a tile.

    With outputs in fp32, [parts · batch, H, W, channels], the sums of parts of IN are stored as they are.
    """
    dtype: gl.constexpr = boxes.dtype
    swizzled: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS * COLS, DEPTH], dtype)
    pixels = gl.allocate_shared_memory(dtype, [BOXES * (ROWS + WINDOW - 1), COLS, DEPTH], swizzled)
    weights = gl.allocate_shared_memory(dtype, [HELD, OUT, DEPTH], swizzled)
    RESIDUAL: gl.constexpr = None if residual_boxes is None else residual_boxes.dtype
    # Of two types that share the buffers, the wider.
    staged: gl.constexpr = gl.float16 if gl.float16 == RESIDUAL else out_boxes.dtype
    STORED: gl.constexpr = OUT // 2 if DEEP % 2 == 0 else OUT
    staged_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS * COLS // 4, STORED], staged)
    BUFFERS: gl.constexpr = 2 if RESIDUAL is None else 4
    STAGED: gl.constexpr = ROWS * COLS // 4 if WRITES or POOLS or RESIDUAL is not None else 8
    staging = gl.allocate_shared_memory(staged, [BUFFERS * GROUPS, STAGED, STORED], staged_layout)
    # After all that TMA writes to: barriers without a waiter give their memory away, and what initialised them
    # was then found in a first tile's residual.
    box_full, box_empty = barriers(BOXES), barriers(BOXES)
    tap_full, tap_empty = barriers(HELD), barriers(HELD)
    pingpong = barriers(2)
    # What isn't asked for has another's place in the tuples, which hold no None, and isn't used.
    added_full = pingpong if RESIDUAL is None else barriers(GROUPS)
    added_empty = pingpong if RESIDUAL is None else barriers(GROUPS)
    hopper.fence_async_shared()
    head_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    HEAD_STAGED: gl.constexpr = ROWS * COLS // 2 if CLASSES > 0 else 8
    head_staging = gl.allocate_shared_memory(gl.float16, [GROUPS, HEAD_STAGED, OUT], head_layout)
    held_mixes = gl.allocate_shared_memory(gl.float16, [8, OUT], head_layout)
    if CLASSES > 0:
        gdc_wait()
        spread: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
        label = gl.arange(0, 8, layout=gl.SliceLayout(1, spread)).expand_dims(1)
        channel = gl.arange(0, OUT, layout=gl.SliceLayout(0, spread)).expand_dims(0)
        mix = gl.load(mixes + label * channels + channel, mask=(label < CLASSES) & (channel < channels), other=0.0)
        held_mixes.store(mix.to(gl.float16))
    hopper.fence_async_shared()
    bars = (box_full, box_empty, tap_full, tap_empty, pingpong, added_full, added_empty)
    geometry = (tiles_y, tiles_x, tiles_out, tiles, chunks, slices, batch)
    ends = (scale, bias, channels)
    head = (held_mixes, mix_bias, logits, height, width)
    added = (bias if slopes is None else slopes, channels if RESIDUAL is None else residual_scale)
    statistics_or_any = bias if statistics is None else statistics
    residual_or_any = boxes if RESIDUAL is None else residual_boxes
    to_multiply = (
        out_boxes, pooled_boxes, pixels, weights, staging, bars, geometry, ends, head, added, statistics_or_any
    )  # fmt: skip
    to_load = (boxes, last_rows, weight_boxes, residual_or_any, pixels, weights, staging, bars, geometry)
    MULTIPLY: gl.constexpr = (
        DEEP, ROWS, COLS, OUT, DEPTH, BOXES, TAPS, HELD, GROUPS, CLASSES, ACTIVATION, SLOPE, SCALED, WRITES, POOLS,
        PAIRED, slopes is not None, RESIDUAL, statistics is not None, WINDOW,
    )  # fmt: skip
    LOAD: gl.constexpr = (
        DEEP, ROWS, COLS, OUT, DEPTH, BOXES, TAPS, HELD, GROUPS, PAIRED, RESIDUAL, EARLY, WINDOW, EDGE
    )  # fmt: skip
    if GROUPS == 1:
        gl.warp_specialize([
            (_multiply, arguments((0, head_staging.index(0)) + to_multiply, MULTIPLY)),
            (load_boxes, arguments(to_load, LOAD)),
        ], [4], [40])  # fmt: skip
    else:
        gl.warp_specialize([
            (_multiply, arguments((0, head_staging.index(0)) + to_multiply, MULTIPLY)),
            (_multiply, arguments((1, head_staging.index(1)) + to_multiply, MULTIPLY)),
            (load_boxes, arguments(to_load, LOAD)),
        ], [num_warps, 4], [232, 40])  # fmt: skip


def launch(operands: Operands, tile: Tile) -> None:
    """Queue the convolution of checked operands: x [N, H, W, in] by weight [taps, out, in]."""
    if tile.parts == 1:
        _queue(operands, tile)
        return
    x, weight, epilogue, _ = operands
    if tile.taps == 0 or epilogue.head is not None or operands.at_a_time > 1:
        raise ValueError(f"neither weights that stay, a head nor two slices go with {tile.parts} parts of the channels")
    (height, width), slices = operands.size, epilogue.slices
    sums = x.new_empty((tile.parts * len(x), slices * height, width, operands.outer), dtype=torch.float32)
    _queue(Operands(x, weight, Epilogue(bias=epilogue.bias, early=epilogue.early, slices=slices), Outputs(sums)), tile)
    add_parts(operands, sums, tile.parts, dependent=True)


def _queue(operands: Operands, tile: Tile) -> None:
    x, weight, epilogue, outputs = operands
    window = operands.window
    if tile.taps < window and (tile.taps > 0 or window > 3):
        raise ValueError(f"a column of {window} weights must fit at once, got {tile}")
    out, pooled, head = by_slice(outputs.out, epilogue.slices), outputs.pooled, epilogue.head
    residual, source = by_slice(epilogue.residual, epilogue.slices), operands.source
    tiles_y, tiles_x, tiles_out = operands.tiles(tile.rows, tile.cols, tile.out)
    slices = epilogue.slices // operands.at_a_time
    batch = len(x) * slices
    tiles = tile.parts * batch * tiles_y * tiles_x * tiles_out
    programs = multiprocessors(x.device)
    # Weights that stay are those of one block of channels: a program's tiles must all be of that block.
    programs = programs // tiles_out * tiles_out if tile.taps == 0 else programs
    if programs == 0:
        raise ValueError(f"weights that stay need a multiprocessor for each of {tiles_out} blocks of channels")
    chunks = -(-x.shape[3] // (tile.depth * tile.parts))
    paired = weight.dtype == torch.float8_e4m3fn and weight.shape[1] % 16 == 0 and operands.at_a_time == 1
    boxed = [tile.rows * tile.cols, tile.depth]
    stored = [tile.rows * tile.cols // 4, tile.out // operands.at_a_time]
    quarter, small = [1, tile.rows // 4, tile.cols, stored[1]], [1, tile.rows // 2, tile.cols // 2, tile.out]
    # Nothing may be written but logits: the buffers are then of the residual's type, if there is one.
    written = next((part for part in (out, pooled, residual) if part is not None), x)
    ones = [1] * (source.ndim - 3)
    on_grid(_conv3x3_gluon, min(tiles, programs))(
        boxes_of(source, [*ones, tile.rows, tile.cols, tile.depth], boxed),
        boxes_of(source, [*ones, window - 1, tile.cols, tile.depth], boxed),
        weight_boxes_of(weight, tile.out, boxed, paired),
        boxes_of(written, quarter, stored), boxes_of(x if pooled is None else pooled, small, stored),
        epilogue.factors, epilogue.bias, *(head or (epilogue.bias, epilogue.bias)),
        epilogue.bias if outputs.logits is None else outputs.logits, epilogue.slopes,
        None if residual is None else boxes_of(residual, quarter, stored), epilogue.residual_unit, outputs.statistics,
        *operands.size, operands.outer, tiles_y, tiles_x, tiles_out, tiles, chunks, slices, batch,
        DEEP=operands.deep, ROWS=tile.rows, COLS=tile.cols, OUT=tile.out, DEPTH=tile.depth,
        BOXES=tile.boxes, TAPS=tile.taps, HELD=tile.taps or len(weight) * chunks, GROUPS=tile.groups,
        CLASSES=0 if head is None else len(head.bias), SCALED=epilogue.scale is not None,
        WRITES=out is not None, POOLS=pooled is not None, PAIRED=paired, EARLY=epilogue.early,
        WINDOW=window, EDGE=operands.edge, num_warps=tile.warps, **epilogue.constants, **DEPENDENT,
    )  # fmt: skip


MOST_PARTS = 12
PART_COSTS = 0.5  # to store and to add a part, in times of a tile's products with `depth` input channels
RESERVED_BYTES = 2048  # of what a program may have: barriers, and what its groups of warps are handed over


def candidates(operands: Operands) -> Iterator[Tile]:
    """Yield tiles worth measuring, likeliest first, that fit in shared memory beside what is stored and added."""
    free = shared_bytes(operands.x.device) - RESERVED_BYTES
    fitting = (tile for tile in _shapes(operands, free) if shared_by(tile, operands) <= free)
    return (tile for tile in fitting if tile.taps > operands.window or (tile.taps == 0 and operands.window == 3))


def _shapes(operands: Operands, free: int) -> Iterator[Tile]:
    """Yield tiles, also those that do not fit; the first has the number of boxes that fit in `free` bytes."""
    x, residual = operands.x, operands.epilogue.residual
    size = x.element_size()
    widest = min(128 // size, max(32 // size, next_power_of_two(x.shape[3])))
    for depth in (widest, widest // 2):
        held = Tile(16, 16, 64, depth, 0, 0, 2, 4)
        boxes = (free - shared_by(held, operands)) // ((15 + operands.window) * 16 * depth * size)
        if depth * size >= 32 and boxes >= 2:
            yield replace(held, boxes=min(boxes, 8))
            break
    for boxes, taps in ((3, 6), (4, 4), (3, 4)) if operands.window == 3 else ((3, 6), (2, 6)):
        if taps == 6 or (boxes == 3) == (residual is not None):
            yield Tile(16, 16, 64, widest, boxes, taps, 2, 4)
    if operands.weight.shape[1] > 64:
        yield Tile(16, 16, 128, widest, 3 if residual is None else 2, 4, 1, 8)
    small = Tile(8, 16, 64, widest, 4, 8, 1, 4)
    yield from (small, replace(small, groups=2))
    if operands.epilogue.head is None and operands.at_a_time == 1:
        split = [replace(tile, parts=_parts(operands, tile)) for tile in (small, Tile(16, 16, 128, widest, 2, 4, 1, 8))]
        yield from (tile for tile in split if tile.parts > 1)


def _parts(operands: Operands, tile: Tile) -> int:
    """Return into how many parts to cut the input channels for the shortest time, where a part costs `PART_COSTS`."""
    at_once, chunks = multiprocessors(operands.x.device), -(-operands.x.shape[3] // tile.depth)
    tiles = len(operands.x) * operands.epilogue.slices * prod(operands.tiles(tile.rows, tile.cols, tile.out))
    return min(
        range(1, min(chunks, MOST_PARTS) + 1),
        key=lambda parts: -(-tiles * parts // at_once) * -(-chunks // parts) + PART_COSTS * parts,
    )


def shared_by(tile: Tile, operands: Operands) -> int:
    """Bytes of shared memory that `conv3x3_gluon` allocates for a tile, but for `RESERVED_BYTES`."""
    x, weight, epilogue, outputs = operands
    pixels, stored = tile.rows * tile.cols, tile.out // operands.at_a_time
    boxes = tile.boxes * (tile.rows + operands.window - 1) * tile.cols
    taps = tile.taps or len(weight) * -(-x.shape[3] // tile.depth)
    written, residual = (outputs.pooled if outputs.out is None else outputs.out), epilogue.residual
    types = [part.element_size() for part in (written, residual) if part is not None]
    if tile.parts > 1:
        types, residual = [4], None
    quarters = 2 if residual is None else 4
    staged = tile.groups * quarters * pixels // 4 * stored * max(types, default=0)
    head = 0 if epilogue.head is None else (tile.groups * pixels // 2 + 8) * tile.out * 2
    return (boxes + taps * tile.out) * tile.depth * x.element_size() + staged + head
