"""The 3×3 convolution of `conv3x3`, for levels where reading the same pixels nine times is what takes the time.

The idea: of nine taps, three share a horizontal shift. One box, two rows taller than the tile, is loaded for each
shift, and the three vertical taps are row offsets into it in shared memory: 3.4 boxes of traffic from L2 for 9. A
row of 16 pixels is a multiple of the 8 rows over which TMA's swizzle repeats, so the offset needs no other swizzle.
Plain Triton has no view into a loaded box; Gluon has.

One warp loads, one or two groups of warps multiply. Two groups alternate (ping-pong warp specialisation): while one
writes its tile, the other has the tensor cores. Weights that fit stay in shared memory for the whole launch. The output
channels are the rows of the product, the pixels its columns, so that 64 channels suffice to feed wgmma
(`conv3x3_triton.Tile.swap`).
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

from pipeline.kernels.common.gluon_epilogue import finish, load_channels, write, write_logits, write_pooled
from pipeline.kernels.common.nhwc import multiprocessors, next_power_of_two
from pipeline.kernels.common.tma import barriers, boxes_of, load_box, view, weight_boxes_of
from pipeline.kernels.conv3x3.conv3x3_operands import Operands, check_folds

SHARED_BYTES = 227 * 1024  # what one program may have on compute capability 9.0


@dataclass(frozen=True)
class Tile:
    """How the work is cut: `rows` × `cols` pixels and `out` channels for each group of warps, `depth` channels a step.

    Attributes:
        boxes: how many boxes of pixels are on their way or in use.
        taps: how many weight matrices [out, depth] are; 0 keeps all of them in shared memory.
        groups: 2 groups of warps take every other tile each; 1 takes every one.
        warps: of each group: 4 for 64 × 256, 8 for twice that.
    """

    rows: int
    cols: int
    out: int
    depth: int
    boxes: int
    taps: int
    groups: int
    warps: int


@gluon.jit
def _place(tile, tiles_y, tiles_x, tiles_out, ROWS: gl.constexpr, COLS: gl.constexpr, OUT: gl.constexpr):
    """Image, first row, first column and first channel of a tile; blocks of channels come one after another."""
    spot = tile // tiles_out
    return spot // tiles_x // tiles_y, spot // tiles_x % tiles_y * ROWS, spot % tiles_x * COLS, tile % tiles_out * OUT


@gluon.jit
def _load(
    boxes, last_rows, weight_boxes, pixels, weights, bars, geometry,
    ROWS: gl.constexpr, COLS: gl.constexpr, OUT: gl.constexpr, DEPTH: gl.constexpr,
    BOXES: gl.constexpr, TAPS: gl.constexpr, HELD: gl.constexpr, PAIRED: gl.constexpr,
):  # fmt: skip
    """The loading warp: for each tile, chunk of channels and horizontal shift one tall box and its three weights."""
    box_full, box_empty, tap_full, tap_empty, _ = bars
    tiles_y, tiles_x, tiles_out, tiles, chunks = geometry
    dtype: gl.constexpr = boxes.dtype
    BYTES: gl.constexpr = DEPTH * dtype.primitive_bitwidth // 8
    STEP: gl.constexpr = 16 if PAIRED else 1
    if TAPS == 0:
        mbarrier.expect(tap_full.index(0), HELD * OUT * BYTES)
        block = gl.program_id(0) % tiles_out * OUT // STEP
        for tap in range(9):
            for chunk in range(chunks):
                held = view(weights.index(tap * chunks + chunk), dtype, weight_boxes.block_shape, weight_boxes.layout)
                load_box(weight_boxes, [tap, block, 0, 0, chunk * DEPTH], tap_full.index(0), held)
    turn = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        image, y0, x0, o0 = _place(tile, tiles_y, tiles_x, tiles_out, ROWS, COLS, OUT)
        for chunk in range(chunks):
            for shift in range(3):
                slot = turn % BOXES
                full = box_full.index(slot)
                mbarrier.wait(box_empty.index(slot), (turn // BOXES & 1) ^ 1)
                mbarrier.expect(full, (ROWS + 2) * COLS * BYTES)
                first = view(pixels.index(slot * (ROWS + 2)), dtype, [1, ROWS, COLS, DEPTH], boxes.layout)
                rest = view(pixels.index(slot * (ROWS + 2) + ROWS), dtype, [1, 2, COLS, DEPTH], last_rows.layout)
                left = x0 + shift - 1
                load_box(boxes, [image, y0 - 1, left, chunk * DEPTH], full, first)
                load_box(last_rows, [image, y0 + ROWS - 1, left, chunk * DEPTH], full, rest)
                if TAPS > 0:
                    for down in gl.static_range(3):
                        spot = (3 * turn + down) % TAPS
                        ready = tap_full.index(spot)
                        mbarrier.wait(tap_empty.index(spot), ((3 * turn + down) // TAPS & 1) ^ 1)
                        mbarrier.expect(ready, OUT * BYTES)
                        held = view(weights.index(spot), dtype, weight_boxes.block_shape, weight_boxes.layout)
                        tap_at = [3 * down + shift, o0 // STEP, 0, 0, chunk * DEPTH]
                        load_box(weight_boxes, tap_at, ready, held)
                turn += 1


@gluon.jit
def _multiply(
    GROUP: gl.constexpr, head_staging, out_boxes, pooled_boxes, pixels, weights, staging, bars, geometry, ends, head,
    ROWS: gl.constexpr, COLS: gl.constexpr, OUT: gl.constexpr, DEPTH: gl.constexpr,
    BOXES: gl.constexpr, TAPS: gl.constexpr, HELD: gl.constexpr, GROUPS: gl.constexpr, CLASSES: gl.constexpr,
    ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr, WRITES: gl.constexpr, POOLS: gl.constexpr,
    PAIRED: gl.constexpr,
):  # fmt: skip
    """A group of warps: every GROUPS-th tile of this program, from the first product to the store."""
    box_full, box_empty, tap_full, tap_empty, pingpong = bars
    tiles_y, tiles_x, tiles_out, tiles, chunks = geometry
    dtype: gl.constexpr = pixels.dtype
    WARPS: gl.constexpr = gl.num_warps()
    SPLIT_OUT: gl.constexpr = OUT // 64
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0],
        warps_per_cta=[4 * SPLIT_OUT, WARPS // 4 // SPLIT_OUT],
        instr_shape=[16, ROWS * COLS if ROWS * COLS < 256 else 256, 256 // dtype.primitive_bitwidth],
    )
    if TAPS == 0:
        mbarrier.wait(tap_full.index(0), 0)
    count = GROUP * 1
    for tile in range(gl.program_id(0) + GROUP * gl.num_programs(0), tiles, GROUPS * gl.num_programs(0)):
        image, y0, x0, o0 = _place(tile, tiles_y, tiles_x, tiles_out, ROWS, COLS, OUT)
        factor, shift = load_channels(ends, o0, SCALED, PAIRED, OUT, layout)
        acc = gl.zeros([OUT, ROWS * COLS], gl.float32, layout)
        turn = count * 3 * chunks
        # A barrier tells this phase from the one before, not from the one before that: a group that ran ahead of the
        # other would take an old box for its own. So the other's loads have arrived before this one's are waited for.
        if GROUPS == 2:
            mbarrier.wait(pingpong.index(GROUP), (count // 2 & 1) ^ (1 - GROUP))
        for chunk in range(chunks):
            for across in gl.static_range(3):
                mbarrier.wait(box_full.index(turn % BOXES), turn // BOXES & 1)
                for down in gl.static_range(3):
                    if TAPS == 0:
                        taps = weights.index((3 * down + across) * chunks + chunk)
                    else:
                        spot = (3 * turn + down) % TAPS
                        mbarrier.wait(tap_full.index(spot), (3 * turn + down) // TAPS & 1)
                        taps = weights.index(spot)
                    rows = pixels.index(turn % BOXES * (ROWS + 2) + down)
                    seen = view(rows, dtype, [ROWS * COLS, DEPTH], pixels.layout)
                    acc = warpgroup_mma(taps, seen.permute((1, 0)), acc, is_async=True)
                    # Once only this tap's product is on its way, the one before it is done with its weights, and the
                    # first of a box shows that the box before is done with.
                    acc = warpgroup_mma_wait(1, deps=(acc,))
                    started = chunk + across + down > 0
                    if TAPS > 0:
                        mbarrier.arrive(tap_empty.index((3 * turn + down + TAPS - 1) % TAPS), count=1, pred=started)
                    if down == 0:
                        mbarrier.arrive(box_empty.index((turn + BOXES - 1) % BOXES), count=1, pred=started)
                turn += 1
        if GROUPS == 2:
            mbarrier.arrive(pingpong.index(1 - GROUP), count=1)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        if TAPS > 0:
            mbarrier.arrive(tap_empty.index((3 * turn - 1) % TAPS), count=1)
        mbarrier.arrive(box_empty.index((turn - 1) % BOXES), count=1)
        y = finish(acc, factor, shift, SCALED, ACTIVATION, SLOPE, PAIRED)
        if WRITES:
            write(y, out_boxes, staging, image, y0, x0, o0, GROUP, ROWS, COLS, OUT)
        if POOLS:
            write_pooled(y, pooled_boxes, staging, image, y0, x0, o0, GROUP, ROWS, COLS, OUT)
        if CLASSES > 0:
            write_logits(y, head, head_staging, image, y0, x0, COLS, CLASSES)
        count += GROUPS
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["height", "width", "channels", "tiles_y", "tiles_x", "tiles_out", "tiles", "chunks"])
def _conv3x3_gluon(
    boxes, last_rows, weight_boxes, out_boxes, pooled_boxes, scale, bias, mixes, mix_bias, logits,
    height, width, channels, tiles_y, tiles_x, tiles_out, tiles, chunks,
    ROWS: gl.constexpr, COLS: gl.constexpr, OUT: gl.constexpr, DEPTH: gl.constexpr,
    BOXES: gl.constexpr, TAPS: gl.constexpr, HELD: gl.constexpr, GROUPS: gl.constexpr, CLASSES: gl.constexpr,
    ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr, WRITES: gl.constexpr, POOLS: gl.constexpr,
    PAIRED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Read x [N, H, W, IN], weight [9, channels, IN], out [N, H, W, channels], pooled [N, H/2, W/2, channels], NHWC."""
    dtype: gl.constexpr = boxes.dtype
    swizzled: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS * COLS, DEPTH], dtype)
    pixels = gl.allocate_shared_memory(dtype, [BOXES * (ROWS + 2), COLS, DEPTH], swizzled)
    weights = gl.allocate_shared_memory(dtype, [HELD, OUT, DEPTH], swizzled)
    box_full, box_empty = barriers(BOXES), barriers(BOXES)
    tap_full, tap_empty = barriers(HELD), barriers(HELD)
    pingpong = barriers(2)
    fence_async_shared()
    out_dtype: gl.constexpr = out_boxes.dtype
    out_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS * COLS // 4, OUT], out_dtype)
    STAGED: gl.constexpr = ROWS * COLS // 4 if WRITES or POOLS else 8
    staging = gl.allocate_shared_memory(out_dtype, [2 * GROUPS, STAGED, OUT], out_layout)
    head_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    HEAD_STAGED: gl.constexpr = ROWS * COLS // 2 if CLASSES > 0 else 8
    head_staging = gl.allocate_shared_memory(gl.float16, [GROUPS, HEAD_STAGED, OUT], head_layout)
    held_mixes = gl.allocate_shared_memory(gl.float16, [8, OUT], head_layout)
    if CLASSES > 0:
        spread: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [num_warps, 1], [1, 0])
        label = gl.arange(0, 8, layout=gl.SliceLayout(1, spread)).expand_dims(1)
        channel = gl.arange(0, OUT, layout=gl.SliceLayout(0, spread)).expand_dims(0)
        mix = gl.load(mixes + label * channels + channel, mask=(label < CLASSES) & (channel < channels), other=0.0)
        held_mixes.store(mix.to(gl.float16))
    fence_async_shared()
    bars = (box_full, box_empty, tap_full, tap_empty, pingpong)
    geometry = (tiles_y, tiles_x, tiles_out, tiles, chunks)
    ends = (scale, bias, channels)
    head = (held_mixes, mix_bias, logits, height, width)
    to_multiply = (out_boxes, pooled_boxes, pixels, weights, staging, bars, geometry, ends, head)
    to_load = (boxes, last_rows, weight_boxes, pixels, weights, bars, geometry)
    MULTIPLY: gl.constexpr = (
        ROWS, COLS, OUT, DEPTH, BOXES, TAPS, HELD, GROUPS, CLASSES, ACTIVATION, SLOPE, SCALED, WRITES, POOLS, PAIRED
    )  # fmt: skip
    LOAD: gl.constexpr = (ROWS, COLS, OUT, DEPTH, BOXES, TAPS, HELD, PAIRED)
    if GROUPS == 1:
        gl.warp_specialize([
            (_multiply, (0, head_staging.index(0)) + to_multiply + MULTIPLY),
            (_load, to_load + LOAD),
        ], [4], [40])  # fmt: skip
    else:
        gl.warp_specialize([
            (_multiply, (0, head_staging.index(0)) + to_multiply + MULTIPLY),
            (_multiply, (1, head_staging.index(1)) + to_multiply + MULTIPLY),
            (_load, to_load + LOAD),
        ], [num_warps, 4], [232, 40])  # fmt: skip


def launch(operands: Operands, tile: Tile) -> None:
    """Queue the convolution of checked operands: x [N, H, W, in] by weight [9, out, in].

    Raises:
        ValueError: a head is to be folded, and a tile holds only some of its channels.
    """
    x, weight, epilogue, outputs = operands
    out, pooled, head = outputs.out, outputs.pooled, epilogue.head
    check_folds(operands, tile.out)
    tiles_y, tiles_x, tiles_out = operands.tiles(tile.rows, tile.cols, tile.out)
    tiles = len(x) * tiles_y * tiles_x * tiles_out
    programs = multiprocessors(x.device)
    # Weights that stay are those of one block of channels: a program's tiles must all be of that block.
    programs = programs // tiles_out * tiles_out if tile.taps == 0 else programs
    chunks = -(-x.shape[3] // tile.depth)
    paired = weight.dtype == torch.float8_e4m3fn and weight.shape[1] % 16 == 0
    boxed = [tile.rows * tile.cols, tile.depth]
    stored = [tile.rows * tile.cols // 4, tile.out]
    quarter, small = [1, tile.rows // 4, tile.cols, tile.out], [1, tile.rows // 2, tile.cols // 2, tile.out]
    written = pooled if out is None else out
    _conv3x3_gluon[min(tiles, programs),](
        boxes_of(x, [1, tile.rows, tile.cols, tile.depth], boxed),
        boxes_of(x, [1, 2, tile.cols, tile.depth], boxed),
        weight_boxes_of(weight, tile.out, boxed, paired),
        boxes_of(x if written is None else written, quarter, stored),
        boxes_of(x if pooled is None else pooled, small, stored),
        epilogue.bias if epilogue.scale is None else epilogue.scale,
        epilogue.bias,
        *(head or (epilogue.bias, epilogue.bias)),
        epilogue.bias if outputs.logits is None else outputs.logits,
        *x.shape[1:3], weight.shape[1], tiles_y, tiles_x, tiles_out, tiles, chunks,
        ROWS=tile.rows, COLS=tile.cols, OUT=tile.out, DEPTH=tile.depth,
        BOXES=tile.boxes, TAPS=tile.taps, HELD=tile.taps or 9 * chunks, GROUPS=tile.groups,
        CLASSES=0 if head is None else len(head.bias),
        ACTIVATION=epilogue.activation.expression, SLOPE=epilogue.activation.slope, SCALED=epilogue.scale is not None,
        WRITES=out is not None, POOLS=pooled is not None, PAIRED=paired, num_warps=tile.warps,
    )  # fmt: skip


def candidates(x: Tensor, outer: int, *, head: bool = False) -> Iterator[Tile]:
    """The tiles worth measuring for x [N, H, W, in] and `outer` output channels, the likeliest first."""
    size = x.element_size()
    widest = min(128 // size, max(32 // size, next_power_of_two(x.shape[3])))
    staging = 2 * 128 * 64 * max(size, 2 if head else 0)
    for depth in (widest, widest // 2):
        held = 9 * -(-x.shape[3] // depth) * 64 * depth * size
        boxes = (SHARED_BYTES - 2048 - staging - held) // (18 * 16 * depth * size)
        if depth * size >= 32 and boxes >= 2:
            yield Tile(16, 16, 64, depth, min(boxes, 8), 0, 2, 4)
            break
    yield Tile(16, 16, 64, widest, 3, 6, 2, 4)
    yield Tile(16, 16, 64, widest, 4, 4, 2, 4)
    if outer > 64:
        yield Tile(16, 16, 128, widest, 3, 4, 1, 8)
    yield Tile(8, 16, 64, widest, 4, 8, 1, 4)
