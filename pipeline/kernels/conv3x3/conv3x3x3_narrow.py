"""The 3×3×3 convolution of `conv3x3` for few channels, where memory is what takes the time.

As in `conv3x3_narrow` pixels are the rows of the product and a program walks down a strip. The product's columns are
the channels of two neighbouring slices, so that a row of each of four slices is read for both.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pipeline.kernels.common import quads, strips
from pipeline.kernels.common.epilogue import check_blocks
from pipeline.kernels.common.nhwc import check_counted, multiprocessors, next_power_of_two
from pipeline.kernels.common.program import by_slice, evenest, on_grid
from pipeline.kernels.conv3x3.conv3x3_triton import Operands

MOST_IN, MOST_OUT = 64, 16  # channels


@dataclass(frozen=True)
class Tile:
    """A cut of the work: strips of `rows` × 64 pixels of two slices, `programs` on each multiprocessor."""

    kernel: ClassVar[str] = "conv3x3x3_narrow"
    rows: int
    programs: int
    slots: int  # rows of four slices that there is shared memory for


@gluon.jit
def _of_two_slices(tap, outer, inner, CHANNELS: gl.constexpr, IN: gl.constexpr, FOLD: gl.constexpr):
    """Where a tap is in a weight [36, 64, IN] of `stacked`: of each 16 rows 8 are of either slice."""
    EACH: gl.constexpr = CHANNELS // FOLD
    own = outer % EACH
    line = own // 8 * 16 + outer // EACH * 8 + own % 8
    return (tap * 64 + line) * IN + inner, outer < CHANNELS


@gluon.jit
def _ask(
    slots, slot, row, z, slices, place, CHUNKS: gl.constexpr, IN_WORDS: gl.constexpr, WORDS: gl.constexpr
):  # fmt: skip
    """Ask for a row of the slices z − 1 to z + 2 of a volume; beyond it for the nearest."""
    volume, x0, strides, height, width = place
    row_stride, _ = strides
    for deep in gl.static_range(4):
        near = gl.minimum(gl.maximum(z + deep - 1, 0), slices - 1)
        there = (volume + near * height * row_stride, x0, strides, height, width)
        strips.ask_for_row(slots, 4 * slot + deep, row, there, CHUNKS, IN_WORDS, WORDS)


@gluon.jit(do_not_specialize=["rows", "slices", "tiles_y", "tiles_x", "tiles"])
def _conv3x3x3_rows(
    x, weight, out, scale, bias, statistics, norm_mean, norm_variance, norm_weight, norm_bias, eps, x_image_stride,
    x_row_stride, x_unit, out_slice_stride, out_row_stride, out_unit, height, width, slices, rows, tiles_y, tiles_x,
    tiles, IN: gl.constexpr, CHANNELS: gl.constexpr, DEPTH: gl.constexpr, CHUNKS: gl.constexpr, OUT: gl.constexpr,
    GROUP: gl.constexpr, SLOTS: gl.constexpr, NORM: gl.constexpr, MERGED: gl.constexpr, ACTIVATION: gl.constexpr,
    SLOPE: gl.constexpr, SCALED: gl.constexpr, EARLY: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Read x [N, slices · H, W, IN] as words of 32 bits; write out [N · slices, H, W, CHANNELS / 2].

    Of a norm of x the arguments are as in `conv3x3_narrow`.
    """
    dtype: gl.constexpr = weight.dtype.element_ty
    WORDS: gl.constexpr = DEPTH * dtype.primitive_bitwidth // 32
    IN_WORDS: gl.constexpr = IN * dtype.primitive_bitwidth // 32
    sums: gl.constexpr = quads.sums_layout(OUT, dtype, num_warps)
    COLS: gl.constexpr = 16 * num_warps
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([OUT, DEPTH], dtype)
    held = gl.allocate_shared_memory(dtype, [36 * CHUNKS, OUT, DEPTH], shared)
    slots = gl.allocate_shared_memory(gl.int32, [4 * SLOTS * CHUNKS * (COLS + strips.BESIDE), 1, WORDS], strips.FLAT)
    gdc_launch_dependents()
    if not EARLY:
        gdc_wait()
    strips.hold(weight, held, _of_two_slices, 9, CHANNELS, IN, DEPTH, CHUNKS, OUT, GROUP, 2)
    ends = quads.load_ends(scale, bias, CHANNELS, SCALED, GROUP, OUT, sums, 2)
    norm = (norm_mean, norm_variance, norm_weight, norm_bias)
    if not MERGED:
        gdc_wait()
    blocks = ((height + 7) // 8) * ((width + 15) // 16) * CHANNELS  # values of a slice's statistics
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        pair = tile // tiles_x // tiles_y
        y0, x0 = tile // tiles_x % tiles_y * rows, tile % tiles_x * COLS
        z = pair % (slices // 2) * 2
        number = pair // (slices // 2)
        volume = x + number.to(gl.int64) * x_image_stride
        place = (volume, x0, (x_row_stride, x_unit), height, width)
        target = out + 2 * pair.to(gl.int64) * out_slice_stride
        for step in gl.static_range(SLOTS - 1):
            _ask(slots, step, y0 - 1 + step, z, slices, place, CHUNKS, IN_WORDS, WORDS)
        if MERGED:
            gdc_wait()
        normed = ()
        for chunk in gl.static_range(CHUNKS):
            normed = normed + (strips.load_norm(norm, eps, number, chunk, IN_WORDS, WORDS, NORM),)  # type: ignore[assignment]
        slot = 0
        above = gl.zeros([COLS, OUT], gl.float32, sums)
        here = gl.zeros([COLS, OUT], gl.float32, sums)
        mean, squares = quads.nothing_counted(COLS, OUT, sums)
        counted = 2 * pair.to(gl.int64) * blocks
        for turn in range(gl.minimum(rows, height - y0) + 2):
            row = y0 - 1 + turn
            async_copy.wait_group(4 * (SLOTS - 2))
            _ask(slots, (slot + SLOTS - 1) % SLOTS, row + SLOTS - 1, z, slices, place, CHUNKS, IN_WORDS, WORDS)
            below = gl.zeros([COLS, OUT], gl.float32, sums)
            for deep in range(4):  # unrolled, rows of several slices would fill the registers
                # A row beyond the image is none, and so is one of a slice beyond the volume.
                seen_row = gl.where((z + deep > 0) & (z + deep <= slices), row, -1)
                for chunk in gl.static_range(CHUNKS):
                    parts = strips.read_row(slots, 4 * slot + deep, chunk, CHUNKS, WORDS)
                    seen = strips.operands_of(
                        parts, normed[chunk], seen_row, x0, height, width, chunk, IN_WORDS, WORDS, NORM, sums, dtype
                    )
                    for shift in gl.static_range(3):
                        taps = held.index((9 * deep + 6 + shift) * CHUNKS + chunk).permute((1, 0))
                        above = warpgroup_mma(seen[shift], taps, above, is_async=True)
                        taps = held.index((9 * deep + 3 + shift) * CHUNKS + chunk).permute((1, 0))
                        here = warpgroup_mma(seen[shift], taps, here, is_async=True)
                        taps = held.index((9 * deep + shift) * CHUNKS + chunk).permute((1, 0))
                        below = warpgroup_mma(seen[shift], taps, below, is_async=True)
                    above, here, below = warpgroup_mma_wait(0, deps=(above, here, below))
            slot = (slot + 1) % SLOTS
            y = quads.finish_rows(above, ends, SCALED, ACTIVATION, SLOPE)
            inside = (row > y0) & (row <= height)
            line = target + (row - 1) * out_row_stride
            quads.store_row(y, line, x0, out_unit, inside, width, CHANNELS, GROUP, 2, out_slice_stride)
            if statistics is not None:
                mean, squares = quads.count_row(
                    y, mean, squares, statistics + counted, row - 1, x0, inside, height, width, CHANNELS, GROUP, 2,
                    blocks,
                )  # fmt: skip
            above, here = here, below
        async_copy.wait_group(0)  # of rows below the strip, before another's come to their slots


def launch(operands: Operands, tile: Tile, norm: strips.NormOnLoad | None = None) -> None:
    """Queue the convolution of checked operands, after a norm if there is one; raise ValueError for others."""
    x, weight, epilogue, outputs = operands
    if not suits(operands):
        raise ValueError(f"this tile takes two slices at a time of at most {MOST_IN} channels to {MOST_OUT}")
    check_blocks(epilogue, tile.rows, 64)
    out = by_slice(outputs.required, epilogue.slices)
    check_counted("x", x)
    check_counted("out", out)
    height, (batch, _, width, inner), outer = operands.height, x.shape, 2 * out.shape[3]
    words = x.view(torch.int32)
    size = x.element_size()
    depth = max(32 // size, min(next_power_of_two(inner), 64 // size))
    tiles_y, tiles_x = -(-height // tile.rows), -(-width // 64)
    tiles = batch * epilogue.slices // 2 * tiles_y * tiles_x
    on_grid(_conv3x3x3_rows, min(tiles, multiprocessors(x.device) * tile.programs))(
        words, weight, out, epilogue.factors, epilogue.bias, outputs.statistics,
        *((None,) * 5 if norm is None else norm[:5]), *strips.steps_of(words), *strips.steps_of(out), height, width,
        epilogue.slices, tile.rows, tiles_y, tiles_x, tiles, IN=inner, DEPTH=depth, CHUNKS=-(-inner // depth),
        SLOTS=tile.slots, NORM=None if norm is None else norm.instructions,
        MERGED=norm is not None and strips.past_the_l1(words), EARLY=epilogue.early,
        **quads.constants(epilogue, outer, out.element_size(), 4, tile.programs),
    )  # fmt: skip


def suits(operands: Operands) -> bool:
    """Return whether the kernel takes the operands: a stacked weight of few channels, and nothing folded but sums."""
    x, weight, epilogue, outputs = operands
    few = x.shape[3] <= MOST_IN and outputs.out is not None and outputs.out.shape[3] <= MOST_OUT
    return few and len(weight) == 36 and weight.is_contiguous() and epilogue.parts <= {"statistics"}


def candidates(operands: Operands) -> Iterator[Tile]:
    """Yield tiles worth measuring, likeliest first."""
    x, slices = operands.x, operands.epilogue.slices
    if not suits(operands):
        return
    wide = x.shape[3] * x.element_size() > 32
    for programs, slots in ((2, 2),) if wide else ((4, 2), (3, 3)):
        size = (len(x) * slices // 2, operands.height, x.shape[2])
        for rows in evenest(size, multiprocessors(x.device) * programs):
            yield Tile(rows, programs, slots)
