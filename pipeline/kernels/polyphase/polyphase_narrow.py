"""An up-sampling beside a skip and the convolution after both, for few channels, where memory is what takes the time.

As in `conv3x3_narrow` a program walks down a strip. A row of the product is a unit of two neighbouring pixels of the
output: what lies below one pixel of the small map. Each step reads a row of the small map, which four output rows take
a tap of, and two rows of the full one; two output rows are then whole.
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

from pipeline.kernels.common import strips
from pipeline.kernels.common.nhwc import check_counted, multiprocessors
from pipeline.kernels.common.program import evenest, on_grid
from pipeline.kernels.polyphase.polyphase_triton import Operands

MOST_IN, MOST_OUT = 64, 16  # channels of the small map; of the skip and of the output, of which a unit has two pixels'
WARPS = 4  # of a program
WORDS = gl.constexpr(8)  # of 32 bits, of a chunk of channels
SMALL_ROWS, FULL_ROWS = gl.constexpr((0, 1, 2, 3)), gl.constexpr((2, 1, 0))  # of taps, by the output rows from the top


@dataclass(frozen=True)
class Tile:
    """A cut of the work: strips of `rows` × 64 pixels of the small map, `programs` on each multiprocessor."""

    kernel: ClassVar[str] = "polyphase_narrow"
    rows: int
    programs: int
    slots: int  # steps whose rows there is shared memory for


@gluon.jit
def _of_phases(tap, outer, inner, CHANNELS: gl.constexpr, IN: gl.constexpr, FOLD: gl.constexpr):
    """Where in a weight [16, CHANNELS / 2, IN] a tap of a unit is, three shifts for each of four output rows."""
    line, shift = tap // 3, tap % 3
    EACH: gl.constexpr = CHANNELS // FOLD
    phase = outer // EACH
    own = 8 * (1 - line % 2) + 2 * (1 - line // 2) + 4 * phase + shift - phase
    return (own * EACH + outer % EACH) * IN + inner, (shift >= phase) & (shift - phase < 2)


@gluon.jit
def _ask(slots, slot, step, places, IN_WORDS: gl.constexpr, SKIP_WORDS: gl.constexpr):
    """Ask for the row of a step of the small map, and the two of the full one."""
    CHUNKS: gl.constexpr = (IN_WORDS + WORDS - 1) // WORDS
    SKIP_CHUNKS: gl.constexpr = (SKIP_WORDS + WORDS - 1) // WORDS
    strips.ask_for_row(slots[0], slot, step, places[0], CHUNKS, IN_WORDS, WORDS)
    for line in gl.static_range(2):
        strips.ask_for_row(slots[1], 2 * slot + line, 2 * step + line, places[1], SKIP_CHUNKS, SKIP_WORDS, WORDS)


@gluon.jit
def _add_row(acc, slots, slot, row, place, held, ROWS: gl.constexpr, IN_WORDS: gl.constexpr):
    """Add the products of a row to the sums of output rows, which have these ROWS of its taps.

    All three shifts at once would not fit into the registers beside the sums of four rows.
    """
    _, x0, _, height, width = place
    CHUNKS: gl.constexpr = (IN_WORDS + WORDS - 1) // WORDS
    sums: gl.constexpr = acc[0].type.layout
    for chunk in gl.static_range(CHUNKS):
        for shift in gl.static_range(3):
            # Of the skip's two chunks each is a pixel: no output sees a neighbouring unit's further one.
            if len(ROWS) == 4 or CHUNKS == 1 or (chunk + shift > 0 and chunk + shift < 3):
                words = strips.read_shift(slots, slot, shift, chunk, CHUNKS, WORDS)
                words = strips.within_image(words, shift, row, x0, height, width, chunk, IN_WORDS, WORDS)
                seen = strips.as_operand(words, sums, held.dtype)
                added = ()
                for line in gl.static_range(len(ROWS)):
                    taps = strips.taps_of(held, ROWS[line], shift, chunk, CHUNKS)
                    added = added + (warpgroup_mma(seen, taps, acc[line], is_async=True),)  # type: ignore[assignment]
                acc = warpgroup_mma_wait(0, deps=added)
    return acc


@gluon.jit
def _store(
    acc, ends, border, out, strides, row, x0, inside, height, width, CHANNELS: gl.constexpr, GROUP: gl.constexpr,
    SCALED: gl.constexpr, ACTIVATION: gl.constexpr, SLOPE: gl.constexpr,
):  # fmt: skip
    """Store a row of an image [units, OUT], with what the border adds in its first and last pixels."""
    factor, shift = ends
    if SCALED:
        acc = acc * factor.expand_dims(0)
    acc = acc + shift.expand_dims(0)
    if border is not None:  # noqa: SIM102 - known when compiling, the next is not
        if (row <= 0) | (row >= height - 1) | (x0 == 0) | (x0 + acc.shape[0] >= width):
            layout: gl.constexpr = acc.type.layout
            WRITTEN: gl.constexpr = CHANNELS // 2
            column = gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, layout))
            channel = strips.channel_written(column, GROUP).expand_dims(0)
            place = x0 + gl.arange(0, acc.shape[0], layout=gl.SliceLayout(1, layout))
            pixel = 2 * place.expand_dims(1) + channel // WRITTEN
            across = 1 + (pixel == 2 * width - 1).to(gl.int32) - (pixel == 0).to(gl.int32)
            down = 1 + (row == height - 1).to(gl.int32) - (row == 0).to(gl.int32)
            at = border + (3 * down + across) * WRITTEN + channel % WRITTEN
            acc = acc + gl.load(at, mask=(channel < CHANNELS) & (pixel < 2 * width), other=0.0)
    row_stride, unit = strides
    strips.store_row(ACTIVATION(acc, SLOPE), out + row * row_stride, x0, unit, inside, width, CHANNELS, GROUP)


@gluon.jit(do_not_specialize=["rows", "tiles_y", "tiles_x", "tiles"])
def _polyphase_rows(
    small, small_weight, full, full_weight, out, scale, bias, border, small_image_stride, small_row_stride, small_unit,
    full_image_stride, full_row_stride, full_unit, out_image_stride, out_row_stride, out_unit, height, width, rows,
    tiles_y, tiles_x, tiles, IN: gl.constexpr, SKIP: gl.constexpr, CHANNELS: gl.constexpr, OUT: gl.constexpr,
    GROUP: gl.constexpr, SLOTS: gl.constexpr, ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr,
    EARLY: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Read small [N, h, w, IN], and full [N, 2 h, w, SKIP] by units; write out [N, 2 h, w, CHANNELS] by units."""
    dtype: gl.constexpr = small_weight.dtype.element_ty
    sums: gl.constexpr = strips.sums_layout(OUT, dtype, num_warps)
    COLS: gl.constexpr = 16 * num_warps
    PLANES: gl.constexpr = SLOTS * (COLS + strips.BESIDE)
    DEPTH: gl.constexpr = 32 * WORDS // dtype.primitive_bitwidth
    IN_WORDS: gl.constexpr = IN * dtype.primitive_bitwidth // 32
    SKIP_WORDS: gl.constexpr = SKIP * dtype.primitive_bitwidth // 32
    CHUNKS: gl.constexpr = (IN_WORDS + WORDS - 1) // WORDS
    SKIP_CHUNKS: gl.constexpr = (SKIP_WORDS + WORDS - 1) // WORDS
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([OUT, DEPTH], dtype)
    small_held = gl.allocate_shared_memory(dtype, [12 * CHUNKS, OUT, DEPTH], shared)
    full_held = gl.allocate_shared_memory(dtype, [9 * SKIP_CHUNKS, OUT, DEPTH], shared)
    small_slots = gl.allocate_shared_memory(gl.int32, [PLANES * CHUNKS, 1, WORDS], strips.FLAT)
    full_slots = gl.allocate_shared_memory(gl.int32, [2 * PLANES * SKIP_CHUNKS, 1, WORDS], strips.FLAT)
    slots = (small_slots, full_slots)
    gdc_launch_dependents()
    if not EARLY:
        gdc_wait()
    strips.hold(small_weight, small_held, _of_phases, 12, CHANNELS, IN, DEPTH, CHUNKS, OUT, GROUP, 2)
    strips.hold(full_weight, full_held, strips.of_units, 9, CHANNELS, SKIP, DEPTH, SKIP_CHUNKS, OUT, GROUP, 2)
    ends = strips.load_ends(scale, bias, CHANNELS, SCALED, GROUP, OUT, sums, 2)
    gdc_wait()
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        number = (tile // tiles_x // tiles_y).to(gl.int64)
        y0, x0 = tile // tiles_x % tiles_y * rows, tile % tiles_x * COLS
        small_place = (small + number * small_image_stride, x0, (small_row_stride, small_unit), height, width)
        full_place = (full + number * full_image_stride, x0, (full_row_stride, full_unit), 2 * height, width)
        target, strides = out + number * out_image_stride, (out_row_stride, out_unit)
        for step in gl.static_range(SLOTS - 1):
            _ask(slots, step, y0 - 1 + step, (small_place, full_place), IN_WORDS, SKIP_WORDS)
        slot = 0
        odd = gl.zeros([COLS, OUT], gl.float32, sums)
        even = gl.zeros([COLS, OUT], gl.float32, sums)
        for turn in range(gl.minimum(rows, height - y0) + 2):
            row = y0 - 1 + turn
            async_copy.wait_group(3 * (SLOTS - 2))
            _ask(slots, (slot + SLOTS - 1) % SLOTS, row + SLOTS - 1, (small_place, full_place), IN_WORDS, SKIP_WORDS)
            # The rows 2 row - 1 to 2 row + 2 of the output, of which the first two have had a step already.
            nothing = gl.zeros([COLS, OUT], gl.float32, sums)
            acc = _add_row(
                (odd, even, nothing, nothing), small_slots, slot, row, small_place, small_held, SMALL_ROWS, IN_WORDS
            )
            upper = _add_row(
                acc[:3], full_slots, 2 * slot, 2 * row, full_place, full_held, FULL_ROWS, SKIP_WORDS
            )  # fmt: skip
            _store(
                upper[0], ends, border, target, strides, 2 * row - 1, x0, (row > y0) & (row <= height), 2 * height,
                width, CHANNELS, GROUP, SCALED, ACTIVATION, SLOPE,
            )  # fmt: skip
            lower = _add_row(
                (upper[1], upper[2], acc[3]), full_slots, 2 * slot + 1, 2 * row + 1, full_place, full_held, FULL_ROWS,
                SKIP_WORDS,
            )  # fmt: skip
            _store(
                lower[0], ends, border, target, strides, 2 * row, x0,
                (row >= y0) & (row < gl.minimum(y0 + rows, height)), 2 * height, width, CHANNELS, GROUP, SCALED,
                ACTIVATION, SLOPE,
            )  # fmt: skip
            slot = (slot + 1) % SLOTS
            odd, even = lower[1], lower[2]
        async_copy.wait_group(0)  # of rows below the strip, before another's come to their slots


def launch(operands: Operands, tile: Tile) -> None:
    """Queue the phases of checked operands; raise ValueError where the kernel doesn't take them."""
    small, full, epilogue, out = operands.small, operands.full, operands.epilogue, operands.outputs.required
    if not suits(operands) or small is None or full is None:
        taken = f"a small map of {MOST_IN} channels and a full one, to {MOST_OUT}, without gaps"
        raise ValueError(f"this tile takes {taken}")
    for name, value in (("small", small), ("full", full), ("out", out)):
        check_counted(name, value)
    outer = 2 * out.shape[3]
    full, out = strips.folded(full, 2), strips.folded(out, 2)
    batch, height, width, inner = small.shape
    tiles_y, tiles_x = -(-height // tile.rows), -(-width // (16 * WARPS))
    tiles = batch * tiles_y * tiles_x
    words = [map_.view(torch.int32) for map_ in (small, full)]
    on_grid(_polyphase_rows, min(tiles, multiprocessors(out.device) * tile.programs))(
        words[0], operands.small_weight, words[1], operands.full_weight, out, epilogue.factors, epilogue.bias,
        operands.border, *(step for map_ in (*words, out) for step in strips.steps_of(map_)), height, width, tile.rows,
        tiles_y, tiles_x, tiles, IN=inner, SKIP=full.shape[3], SLOTS=tile.slots, EARLY=epilogue.early,
        **strips.constants(epilogue, outer, out.element_size(), WARPS, tile.programs),
    )  # fmt: skip


def suits(operands: Operands) -> bool:
    """Return whether the kernel takes the operands: two maps of few channels, without gaps where units are read."""
    small, full, out = operands.small, operands.full, operands.outputs.out
    if small is None or full is None or out is None or operands.window_of_3 or operands.epilogue.parts:
        return False
    dense = all(map_.stride(2) == map_.shape[3] for map_ in (full, out))
    return dense and small.shape[3] <= MOST_IN and full.shape[3] <= MOST_OUT and out.shape[3] <= MOST_OUT


def candidates(operands: Operands) -> Iterator[Tile]:
    """Yield tiles worth measuring, likeliest first."""
    small, out = operands.small, operands.outputs.out
    if small is None or out is None or not suits(operands):
        return
    for programs, slots in ((3, 2), (2, 3)) if out.shape[3] > 8 else ((4, 2), (3, 3)):
        for rows in evenest(small.shape[:3], multiprocessors(small.device) * programs):
            yield Tile(rows, programs, slots)
