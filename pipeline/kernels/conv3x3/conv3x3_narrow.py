"""The 3×3 convolution of `conv3x3` for few channels, where memory is what takes the time.

The idea: pixels are the rows of the product, so that 8, 16 or 32 output channels fill its columns.
A program walks down a strip of pixels one input row at a time. Rows are on their way to shared memory long before, read
from there at three horizontal shifts into the registers that feed wgmma (`common/strips.py`). Each read serves three
taps: the output rows above, here and below. Of volumes the product's columns are the channels of two neighbouring
slices, so that a row of each of four slices is read for both.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pipeline.kernels.common import strips
from pipeline.kernels.common.activation import larger
from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_blocks
from pipeline.kernels.common.nhwc import check_counted, multiprocessors, next_power_of_two
from pipeline.kernels.common.program import by_slice, evenest, on_grid
from pipeline.kernels.conv3x3.conv3x3_triton import Operands

MOST_IN, MOST_OUT = 64, 32  # more would not fit in the registers
MOST_OF_SLICE = 16  # output channels of volumes
FEW_OUT, FEW_BYTES = 16, 64  # output channels, or bytes an input pixel, with which this kernel is the fastest


@dataclass(frozen=True)
class Tile:
    """A cut of the work: strips of `rows` × 16 · `warps` units of `fold` pixels and all output channels."""

    kernel: ClassVar[str] = "conv3x3_narrow"
    rows: int  # two less than a multiple of 3, as the three output rows in work take turns
    warps: int = 4  # of a program, 4 or 8
    programs: int = 4  # on each multiprocessor
    slots: int = 3  # rows that there is shared memory for, at least 2
    fold: int = 1  # neighbouring pixels of a map without gaps that are one row of the product


@gluon.jit
def _store_planar(y, image, row, x0, inside, height, width, CHANNELS: gl.constexpr):
    """Y [pixels, OUT] in fp32 as a row of an image [channels, height, width], where `inside`."""
    layout: gl.constexpr = y.type.layout
    col = (x0 + gl.arange(0, 16 * gl.num_warps(), layout=gl.SliceLayout(1, layout))).expand_dims(1)
    channel = gl.arange(0, y.shape[1], layout=gl.SliceLayout(0, layout)).expand_dims(0)
    line = image + row * width
    gl.store(line + (channel * height * width + col), y, mask=(col < width) & (channel < CHANNELS) & inside)


@gluon.jit
def _pooled_across(y, FOLD: gl.constexpr, GROUP: gl.constexpr):
    """Return the maxima [pixels / 2, channels] of neighbouring pixels of y [units, OUT] as a product has its sums."""
    ordered = strips.in_order(y, GROUP)
    pixels = ordered.reshape([y.shape[0] * FOLD // 2, 2, y.shape[1] // FOLD])
    return gl.reduce(pixels, 1, larger)


@gluon.jit
def _load_head(
    mixes, bias, CLASSES: gl.constexpr, CHANNELS: gl.constexpr, OUT: gl.constexpr, FOLD: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    """Return mixes [CLASSES, CHANNELS / FOLD] in shared memory, a column for a class of a unit's pixel, and biases."""
    COLUMNS: gl.constexpr = 8 if CLASSES * FOLD <= 8 else 16 if CLASSES * FOLD <= 16 else 32
    SHAPE: gl.constexpr = [COLUMNS, OUT if OUT > 16 else 16]
    held = gl.allocate_shared_memory(gl.float16, SHAPE, gl.NVMMASharedLayout.get_default_for(SHAPE, gl.float16))
    spread: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [gl.num_warps(), 1], [1, 0])
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(1, spread)).expand_dims(1)
    entry = gl.arange(0, SHAPE[1], layout=gl.SliceLayout(0, spread))
    channel = strips.channel_written(entry, GROUP).expand_dims(0)
    MIXED: gl.constexpr = CHANNELS // FOLD
    known = (column // FOLD < CLASSES) & (channel < CHANNELS) & (channel // MIXED == column % FOLD)
    mix = gl.load(mixes + column // FOLD * MIXED + channel % MIXED, mask=known, other=0.0)
    held.store(mix.to(gl.float16))
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, strips.sums_layout(COLUMNS, gl.float16, gl.num_warps())))
    return held, gl.load(bias + column // FOLD, mask=column // FOLD < CLASSES, other=0.0)


@gluon.jit
def _store_logits(
    y, head, logits, row, x0, inside, height, width, CLASSES: gl.constexpr, FOLD: gl.constexpr
):  # fmt: skip
    """Multiply y [units, OUT] in fp16 by a head and store the logits of a row of an image [CLASSES, height, pixels]."""
    held, bias = head
    COLUMNS: gl.constexpr = held.shape[0]
    sums: gl.constexpr = strips.sums_layout(COLUMNS, gl.float16, gl.num_warps())
    mixed = y.to(gl.float16)
    if held.shape[1] > y.shape[1]:  # eight channels fill half of a product's depth
        mixed = gl.join(mixed, gl.zeros_like(mixed)).permute((0, 2, 1)).reshape([y.shape[0], held.shape[1]])
    mixed = gl.convert_layout(mixed, gl.DotOperandLayout(0, sums, 2), assert_trivial=True)
    acc = gl.zeros([y.shape[0], COLUMNS], gl.float32, sums)
    acc = warpgroup_mma(mixed, held.permute((1, 0)), acc, use_acc=False, is_async=True)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, sums))
    label = (column // FOLD).expand_dims(0)
    unit = (x0 + gl.arange(0, y.shape[0], layout=gl.SliceLayout(1, sums))).expand_dims(1)
    at = (label * height + row) * (width * FOLD) + unit * FOLD + (column % FOLD).expand_dims(0)
    gl.store(logits + at, acc + bias.expand_dims(0), mask=(unit < width) & (label < CLASSES) & inside)


@gluon.jit
def _products(seen, held, above, here, below, chunk: gl.constexpr, CHUNKS: gl.constexpr):
    """Add the products of a chunk of an input row's channels, at three shifts, to the sums of three output rows."""
    for shift in gl.static_range(3):  # in turns: a product need not wait for the sums of the one before it
        above = warpgroup_mma(seen[shift], strips.taps_of(held, 2, shift, chunk, CHUNKS), above, is_async=True)
        here = warpgroup_mma(seen[shift], strips.taps_of(held, 1, shift, chunk, CHUNKS), here, is_async=True)
        taps = strips.taps_of(held, 0, shift, chunk, CHUNKS)
        below = warpgroup_mma(seen[shift], taps, below, use_acc=chunk + shift > 0, is_async=True)
    return warpgroup_mma_wait(0, deps=(above, here, below))


@gluon.jit(do_not_specialize=["rows", "tiles_y", "tiles_x", "tiles"])
def conv3x3_rows(
    x, weight, out, scale, bias, statistics, norm_mean, norm_variance, norm_weight, norm_bias, eps, added, added_scale,
    added_image_stride, added_row_stride, added_unit, pooled, pooled_image_stride, pooled_row_stride, pooled_unit,
    mixes, mix_bias, logits, x_image_stride, x_row_stride, x_unit, out_image_stride, out_row_stride, out_unit, height,
    width, rows, tiles_y, tiles_x, tiles, IN: gl.constexpr, CHANNELS: gl.constexpr, DEPTH: gl.constexpr,
    CHUNKS: gl.constexpr, OUT: gl.constexpr, GROUP: gl.constexpr, FOLD: gl.constexpr, CLASSES: gl.constexpr,
    SLOTS: gl.constexpr, PLANAR: gl.constexpr, NORM: gl.constexpr, MERGED: gl.constexpr, ACTIVATION: gl.constexpr,
    SLOPE: gl.constexpr, SCALED: gl.constexpr, EARLY: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Read x [N, H, W, IN], as words of 32 bits, and weight [9, CHANNELS, IN]; write out [N, H, W, CHANNELS].

    Where PLANAR it is [N, CHANNELS, H, W]. If a norm of x was MERGED right before, by who has waited for x, the first
    rows needn't wait. A place of x and out is a unit of FOLD pixels, whose channels lie one pixel after the other.
    """
    dtype: gl.constexpr = weight.dtype.element_ty
    WORDS: gl.constexpr = DEPTH * dtype.primitive_bitwidth // 32
    IN_WORDS: gl.constexpr = IN * dtype.primitive_bitwidth // 32
    sums: gl.constexpr = strips.sums_layout(OUT, dtype, num_warps)
    COLS: gl.constexpr = 16 * num_warps
    strides, norm = (x_row_stride, x_unit), (norm_mean, norm_variance, norm_weight, norm_bias)
    added_steps = (added_row_stride, added_unit)
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([OUT, DEPTH], dtype)
    held = gl.allocate_shared_memory(dtype, [9 * CHUNKS, OUT, DEPTH], shared)
    # A plane for each pixel of each chunk of a row's channels.
    slots = gl.allocate_shared_memory(gl.int32, [SLOTS * CHUNKS * (COLS + strips.BESIDE), 1, WORDS], strips.FLAT)
    gdc_launch_dependents()
    if not EARLY:
        gdc_wait()
    head = _load_head(mixes, mix_bias, CLASSES, CHANNELS, OUT, FOLD, GROUP) if CLASSES > 0 else ()
    strips.hold(weight, held, strips.of_units, 9, CHANNELS, IN, DEPTH, CHUNKS, OUT, GROUP, FOLD)
    ends = strips.load_ends(scale, bias, CHANNELS, SCALED, GROUP, OUT, sums, FOLD)
    if not MERGED:
        gdc_wait()
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        # As norms' passes go: from the end, which the layer before wrote last (`norm_pass`).
        spot = tile if NORM is None else tiles - 1 - tile
        number = spot // tiles_x // tiles_y
        y0, x0 = spot // tiles_x % tiles_y * rows, spot % tiles_x * COLS
        image = x + number.to(gl.int64) * x_image_stride
        target = None if out is None else out + number.to(gl.int64) * out_image_stride
        beside = None if added is None else added + number.to(gl.int64) * added_image_stride
        place = (image, x0, strides, height, width)
        for step in gl.static_range(SLOTS - 1):
            strips.ask_for_row(slots, step, y0 - 1 + step, place, CHUNKS, IN_WORDS, WORDS)
        slot = 0
        if MERGED:
            gdc_wait()
        normed = ()
        for chunk in gl.static_range(CHUNKS):
            normed = normed + (strips.load_norm(norm, eps, number, chunk, IN_WORDS, WORDS, NORM),)  # type: ignore[assignment]
        above = gl.zeros([COLS, OUT], gl.float32, sums)
        here = gl.zeros([COLS, OUT], gl.float32, sums)
        upper = () if pooled is None else _pooled_across(above, FOLD, GROUP)
        mean, squares = strips.nothing_counted(COLS, OUT, sums)
        counted = number.to(gl.int64) * ((height + 7) // 8) * ((width + 15) // 16) * (2 * CHANNELS)
        for turn in range(0, gl.minimum(rows, height - y0) + 2, 3):
            for step in gl.static_range(3):
                row = y0 - 1 + turn + step
                residual = strips.load_added(beside, row - 1, x0, added_steps, height, width, CHANNELS, OUT, GROUP)
                below = gl.zeros([COLS, OUT], gl.float32, sums)
                async_copy.wait_group(SLOTS - 2)
                strips.ask_for_row(slots, (slot + SLOTS - 1) % SLOTS, row + SLOTS - 1, place, CHUNKS, IN_WORDS, WORDS)
                for chunk in gl.static_range(CHUNKS):
                    parts = strips.read_row(slots, slot, chunk, CHUNKS, WORDS)
                    seen = strips.operands_of(
                        parts, normed[chunk], row, x0, height, width, chunk, IN_WORDS, WORDS, NORM, sums, dtype
                    )
                    above, here, below = _products(seen, held, above, here, below, chunk, CHUNKS)
                slot = (slot + 1) % SLOTS
                y = strips.finish_rows(above, ends, SCALED, ACTIVATION, SLOPE, residual, added_scale, GROUP)
                inside = (row > y0) & (row <= height)
                if PLANAR:
                    _store_planar(y, target, row - 1, x0, inside, height, width, CHANNELS)
                elif out is not None:
                    strips.store_row(
                        y, target + (row - 1) * out_row_stride, x0, out_unit, inside, width, CHANNELS, GROUP
                    )
                if pooled is not None:
                    lower = _pooled_across(y, FOLD, GROUP)
                    line = pooled + number.to(gl.int64) * pooled_image_stride + (row - 1) // 2 * pooled_row_stride
                    strips.store_ordered(
                        larger(upper, lower).to(pooled.dtype.element_ty), line, x0 * FOLD // 2, pooled_unit,
                        inside & (row % 2 == 0), width * FOLD // 2, CHANNELS // FOLD,
                    )  # fmt: skip
                    upper = lower
                if CLASSES > 0:
                    planes = logits + number.to(gl.int64) * (CLASSES * FOLD) * height * width
                    _store_logits(y, head, planes, row - 1, x0, inside, height, width, CLASSES, FOLD)
                if statistics is not None:
                    mean, squares = strips.count_row(
                        y, mean, squares, statistics + counted, row - 1, x0, inside, height, width, CHANNELS, GROUP
                    )
                above, here = here, below
        async_copy.wait_group(0)  # of rows below the strip, before another's come to their slots


def queue(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile, *, planar: bool = False,
    norm: strips.NormOnLoad | None = None,
) -> None:  # fmt: skip
    """Queue the convolution of checked x by contiguous weight; `planar`, logits are what it stores, without a head."""
    out, fold = outputs.logits if planar else outputs.out, tile.fold
    x, out = strips.folded(x, fold), out if planar or out is None else strips.folded(out, fold)
    batch, height, width, inner = x.shape
    outer = weight.shape[1] * fold
    words = x.view(torch.int32)
    depth = max(32 // x.element_size(), min(next_power_of_two(inner), 64 // x.element_size()))
    strides = (0, 0, 0) if out is None else (out.stride(0), 0, 0) if planar else strips.steps_of(out)
    written = 8 if planar else 2 if out is None else out.element_size()  # 8: of eight columns in order
    tiles_y, tiles_x = -(-height // tile.rows), -(-width // (16 * tile.warps))
    tiles = batch * tiles_y * tiles_x
    residual, pooled, head = epilogue.residual, outputs.pooled, epilogue.head
    on_grid(conv3x3_rows, min(tiles, multiprocessors(x.device) * tile.programs))(
        words, weight, out, epilogue.factors, epilogue.bias, outputs.statistics,
        *((None,) * 5 if norm is None else norm[:5]),
        residual, epilogue.residual_unit, *((0, 0, 0) if residual is None else strips.steps_of(residual)),
        pooled, *((0, 0, 0) if pooled is None else strips.steps_of(pooled)), *(head or (None, None)),
        None if head is None else outputs.logits, *strips.steps_of(words), *strides, height, width, tile.rows, tiles_y,
        tiles_x, tiles, IN=inner, DEPTH=depth, CHUNKS=-(-inner // depth), FOLD=fold,
        CLASSES=0 if head is None else len(head.bias), SLOTS=tile.slots, PLANAR=planar,
        NORM=None if norm is None else norm.instructions, MERGED=norm is not None and strips.past_the_l1(words),
        EARLY=epilogue.early, **strips.constants(epilogue, outer, written, tile.warps, tile.programs),
    )  # fmt: skip


def launch(operands: Operands, tile: Tile, norm: strips.NormOnLoad | None = None) -> None:
    """Queue the convolution of checked operands, after a norm if there is one; raise ValueError for other strips."""
    x, weight, epilogue, outputs = operands
    if not operands.edge or not weight.is_contiguous() or not suits(x, weight.shape[1], epilogue):
        taken = f"at most {MOST_IN} channels to {MOST_OUT} and has no slopes by channel"
        raise ValueError(f"this tile pads x, takes {taken}")
    check_blocks(epilogue, tile.rows, 16 * tile.warps)
    check_counted("x", x)  # in 64 bits some tiles spill more registers
    for name, value in (("out", outputs.out), ("pooled", outputs.pooled), ("residual", epilogue.residual)):
        if value is not None:
            check_counted(name, value)
    if tile.fold > 1 and (norm is not None or epilogue.parts & {"statistics", "residual"}):
        raise ValueError("units of several pixels take no norm, statistics or residual")
    queue(x, weight, epilogue, outputs, tile, norm=norm)


def suits(x: Tensor, outer: int, epilogue: Epilogue) -> bool:
    """Return whether the kernel takes x [N, H, W, in], `outer` output channels and the epilogue."""
    plain = epilogue.parts <= {"statistics", "residual", "pool", "head"}
    return plain and x.shape[3] <= MOST_IN and outer <= MOST_OUT


def pays(inner: int, outer: int, size: int = 2) -> bool:
    """Return whether there are tiles for these channels of `size` bytes; `conv3x3_gluon` is faster for the others."""
    return inner <= MOST_IN and (outer <= FEW_OUT or (outer <= MOST_OUT and inner * size <= FEW_BYTES))


def candidates(x: Tensor, outer: int, *, ends: bool = False, dense: bool = False) -> Iterator[Tile]:
    """Yield tiles worth measuring, likeliest first; with `ends` (statistics, a residual) registers are fewer.

    Where maps are `dense`, what is stored too, units of two pixels may fill a product's depth.
    """
    size, (width, inner) = x.element_size(), x.shape[2:]
    if not pays(inner, outer, size):
        return
    fills = 2 * inner * size <= FEW_BYTES // 2 and width % 2 == 0 and next_power_of_two(outer) == outer
    for fold in (2, 1) if dense and fills and x.stride(2) == inner else (1,):
        units = strips.folded(x, fold)
        few = outer * fold <= FEW_OUT or (size == 1 and not ends)
        for programs, slots in ((3 if ends else 4, 4), (4, 3)) if few else ((3, 3), (2, 4)):
            for rows in evenest(units.shape[:3], multiprocessors(x.device) * programs):
                yield Tile(rows, 4, programs, slots, fold)


@dataclass(frozen=True)
class VolumeTile:
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
    sums: gl.constexpr = strips.sums_layout(OUT, dtype, num_warps)
    COLS: gl.constexpr = 16 * num_warps
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([OUT, DEPTH], dtype)
    held = gl.allocate_shared_memory(dtype, [36 * CHUNKS, OUT, DEPTH], shared)
    slots = gl.allocate_shared_memory(gl.int32, [4 * SLOTS * CHUNKS * (COLS + strips.BESIDE), 1, WORDS], strips.FLAT)
    gdc_launch_dependents()
    if not EARLY:
        gdc_wait()
    strips.hold(weight, held, _of_two_slices, 9, CHANNELS, IN, DEPTH, CHUNKS, OUT, GROUP, 2)
    ends = strips.load_ends(scale, bias, CHANNELS, SCALED, GROUP, OUT, sums, 2)
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
        mean, squares = strips.nothing_counted(COLS, OUT, sums)
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
            y = strips.finish_rows(above, ends, SCALED, ACTIVATION, SLOPE)
            inside = (row > y0) & (row <= height)
            line = target + (row - 1) * out_row_stride
            strips.store_row(y, line, x0, out_unit, inside, width, CHANNELS, GROUP, 2, out_slice_stride)
            if statistics is not None:
                mean, squares = strips.count_row(
                    y, mean, squares, statistics + counted, row - 1, x0, inside, height, width, CHANNELS, GROUP, 2,
                    blocks,
                )  # fmt: skip
            above, here = here, below
        async_copy.wait_group(0)  # of rows below the strip, before another's come to their slots


def launch_volumes(operands: Operands, tile: VolumeTile, norm: strips.NormOnLoad | None = None) -> None:
    """Queue the convolution of checked operands, after a norm if there is one; raise ValueError for others."""
    x, weight, epilogue, outputs = operands
    if not suits_volumes(operands):
        raise ValueError(f"this tile takes two slices at a time of at most {MOST_IN} channels to {MOST_OF_SLICE}")
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
        **strips.constants(epilogue, outer, out.element_size(), 4, tile.programs),
    )  # fmt: skip


def suits_volumes(operands: Operands) -> bool:
    """Return whether the kernel takes the operands: a stacked weight of few channels, and nothing folded but sums."""
    x, weight, epilogue, outputs = operands
    few = x.shape[3] <= MOST_IN and outputs.out is not None and outputs.out.shape[3] <= MOST_OF_SLICE
    return few and len(weight) == 36 and weight.is_contiguous() and epilogue.parts <= {"statistics"}


def volume_candidates(operands: Operands) -> Iterator[VolumeTile]:
    """Yield tiles worth measuring, likeliest first."""
    x, slices = operands.x, operands.epilogue.slices
    if not suits_volumes(operands):
        return
    wide = x.shape[3] * x.element_size() > 32
    for programs, slots in ((2, 2),) if wide else ((4, 2), (3, 3)):
        size = (len(x) * slices // 2, operands.height, x.shape[2])
        for rows in evenest(size, multiprocessors(x.device) * programs):
            yield VolumeTile(rows, programs, slots)
