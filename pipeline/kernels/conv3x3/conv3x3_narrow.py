"""The 3×3 convolution of `conv3x3` for few channels, where memory is what takes the time.

The idea: pixels are the rows of the product, so that 8, 16 or 32 output channels fill its columns.
A program walks down a strip of pixels one input row at a time. Rows are on their way to shared memory long before, read
from there at three horizontal shifts into the registers that feed wgmma (`common/quads.py`), and each read serves three
taps: the output rows above, here and below. Where Triton doesn't build views that begin at any pixel, rows come
straight into the registers, three times, which the L1 answers twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from pipeline.kernels.common import quads
from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.dependent_launch import DEPENDENT, let_the_next_begin, wait_for_those_before
from pipeline.kernels.common.epilogue import Epilogue, check_blocks, required
from pipeline.kernels.common.nhwc import check_counted, multiprocessors, next_power_of_two
from pipeline.kernels.common.program import evenest, on_grid
from pipeline.kernels.common.tma import box_of, reach
from pipeline.kernels.conv3x3.conv3x3_triton import Operands

# Triton 3.8 renamed it.
copy_to_shared = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))  # pixel after pixel
BESIDE = gl.constexpr(8)  # pixels of a slot beyond a strip's own: two are read
HALF_MAX = gl.constexpr(65504.0)


class NormOnLoad(NamedTuple):
    """An instance or group norm and max(y, slope · y), applied to the pixels that are read: a pass would take longer.

    The mean goes off first: a shift of −mean · factor would round with an error as large as what is left.
    """

    mean: Tensor  # of each image and channel, or the channel's group, [N, in] fp32
    variance: Tensor  # the biased one of the same, [N, in] fp32
    weight: Tensor | None  # [in] fp32; None for 1
    bias: Tensor | None  # [in] fp32; None for 0
    eps: float  # added to the variance
    slope: float  # 0 for a ReLU, 1 for none, a leaky ReLU's between them

    @property
    def instructions(self) -> str:
        """The PTX that makes $0, two fp16 values, of x, mean, factor and shift, two values each."""
        slope = int(torch.tensor(self.slope, dtype=torch.float16).view(torch.int16)) & 0xFFFF
        return (
            "{ .reg .b32 y, z; sub.rn.f16x2 y, $1, $2; fma.rn.f16x2 y, y, $3, $4; "
            f"mov.b32 z, 0x{slope:04x}{slope:04x}; mul.rn.f16x2 z, y, z; max.NaN.f16x2 $0, y, z; }}"
        )


@gluon.jit
def _pairs(low, high):
    """Two values of each of two fp32 tensors as a word of two fp16 values, those of `low` in its lower half."""
    return gl.inline_asm_elementwise(
        "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def _ends(norm, eps, number, channel, CHANNELS: gl.constexpr):
    """Mean, factor and shift of channels of an image."""
    mean_at, variance_at, weight, bias = norm
    inside = channel < CHANNELS
    mean = gl.load(mean_at + number * CHANNELS + channel, mask=inside, other=0.0)
    factor = gl.rsqrt(gl.load(variance_at + number * CHANNELS + channel, mask=inside, other=1.0) + eps)
    shift = gl.zeros_like(mean)
    if weight is not None:
        factor *= gl.load(weight + channel, mask=inside, other=0.0)
    if bias is not None:
        shift = gl.load(bias + channel, mask=inside, other=0.0)
    return mean, gl.minimum(gl.maximum(factor, -HALF_MAX), HALF_MAX), shift


@gluon.jit
def load_norm(
    norm, eps, number, CHUNK: gl.constexpr, IN_WORDS: gl.constexpr, WORDS: gl.constexpr, NORM: gl.constexpr
):  # fmt: skip
    """Load what `normalised` takes for a chunk of channels of image `number`, two a word; nothing without NORM."""
    ends = ()
    if NORM is not None:
        layout: gl.constexpr = quads.row_layout(WORDS // 4, WORDS, gl.num_warps())
        channel = 2 * (CHUNK * WORDS + gl.arange(0, WORDS, layout=gl.SliceLayout(0, layout)).expand_dims(0))
        low = _ends(norm, eps, number, channel, 2 * IN_WORDS)
        high = _ends(norm, eps, number, channel + 1, 2 * IN_WORDS)
        ends = (_pairs(low[0], high[0]), _pairs(low[1], high[1]), _pairs(low[2], high[2]))  # type: ignore[assignment]
    return ends


@gluon.jit
def normalised(words, ends, INSTRUCTIONS: gl.constexpr):
    """Words [pixels, WORDS] of two fp16 values each after the norm whose `ends` are [1, WORDS]."""
    mean, factor, shift = ends
    words, mean = gl.broadcast(words, mean)
    words, factor = gl.broadcast(words, factor)
    words, shift = gl.broadcast(words, shift)
    return gl.inline_asm_elementwise(
        INSTRUCTIONS, "=r,r,r,r,r", [words, mean, factor, shift], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def hold_weights(
    weight, held, CHANNELS: gl.constexpr,
    IN: gl.constexpr, DEPTH: gl.constexpr, CHUNKS: gl.constexpr, OUT: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Weight [9, channels, IN] into shared memory [9 · CHUNKS, OUT, DEPTH], in the order of `common/quads.py`."""
    WIDTH: gl.constexpr = 32 // held.dtype.primitive_bitwidth
    spread: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [gl.num_warps(), 1], [1, 0])
    column = gl.arange(0, OUT, layout=gl.SliceLayout(1, spread))
    entry = gl.arange(0, DEPTH, layout=gl.SliceLayout(0, spread))
    outer = quads.channel_written(column, GROUP).expand_dims(1)
    inner = quads.channel_read(entry, DEPTH, WIDTH).expand_dims(0)
    for chunk in gl.static_range(CHUNKS):
        here, taps = inner + chunk * DEPTH, ()
        for tap in gl.static_range(9):  # all are on their way before the first is stored
            source = weight + (tap * CHANNELS + outer) * IN + here
            taps = taps + (gl.load(source, mask=(outer < CHANNELS) & (here < IN), other=0.0),)  # type: ignore[assignment]
        for tap in gl.static_range(9):
            held.index(tap * CHUNKS + chunk).store(taps[tap])
    fence_async_shared()
    quads.wait_for_all_warps()


@gluon.jit
def first_rows(
    slots, y0, place,
    AHEAD: gl.constexpr, SLOTS: gl.constexpr, CHUNKS: gl.constexpr, IN_WORDS: gl.constexpr, WORDS: gl.constexpr,
):  # fmt: skip
    """Send for a strip's first rows; what of them is on its way to registers."""
    queue = ()
    for step in gl.static_range(AHEAD):
        queue = queue + _load_row(y0 - 1 + step // CHUNKS, place, step % CHUNKS, IN_WORDS, WORDS)
    for step in gl.static_range(SLOTS - 1):
        _ask_for_row(slots, step, y0 - 1 + step, place, CHUNKS, IN_WORDS, WORDS)
    return queue


@gluon.jit
def next_chunk(
    queue, slots, slot, row, place, CHUNK: gl.constexpr, AHEAD: gl.constexpr, SLOTS: gl.constexpr, CHUNKS: gl.constexpr,
    IN_WORDS: gl.constexpr, WORDS: gl.constexpr,
):  # fmt: skip
    """Return a chunk of a row at three shifts, and the queue after it; ask for a later row in a slot that was read."""
    if SLOTS > 0:
        if CHUNK == 0:
            async_copy.wait_group(SLOTS - 2)
            _ask_for_row(slots, (slot + SLOTS - 1) % SLOTS, row + SLOTS - 1, place, CHUNKS, IN_WORDS, WORDS)
        parts = _read_row(slots, slot, CHUNK, CHUNKS, WORDS)
    else:
        later = row + (CHUNK + AHEAD) // CHUNKS
        queue = queue + _load_row(later, place, (CHUNK + AHEAD) % CHUNKS, IN_WORDS, WORDS)
        parts, queue = queue[:3], queue[3:]
    return parts, queue


@gluon.jit
def _load_row(row, place, CHUNK: gl.constexpr, IN_WORDS: gl.constexpr, WORDS: gl.constexpr):
    """Load a chunk of an input row at three shifts, each [16 · warps, WORDS]; outside the image the border."""
    layout: gl.constexpr = quads.row_layout(WORDS // 4, WORDS, gl.num_warps())
    pixel = gl.arange(0, 16 * gl.num_warps(), layout=gl.SliceLayout(1, layout))
    word = CHUNK * WORDS + gl.arange(0, WORDS, layout=gl.SliceLayout(0, layout)).expand_dims(0)
    image, x0, strides, height, width = place
    row_stride, unit_stride = strides
    line = image + gl.minimum(gl.maximum(row, 0), height - 1) * row_stride
    parts = ()
    for shift in gl.static_range(3):
        col = gl.minimum(gl.maximum(x0 + pixel + (shift - 1), 0), width - 1)
        source = line + ((col * (4 * unit_stride)).expand_dims(1) + word)
        if CHUNK * WORDS + WORDS > IN_WORDS:
            parts = parts + (gl.load(source, mask=word < IN_WORDS),)  # type: ignore[assignment]
        else:
            parts = parts + (gl.load(source),)  # type: ignore[assignment]
    return parts


@gluon.jit
def _ask_for_row(
    held, slot, row, place, CHUNKS: gl.constexpr, IN_WORDS: gl.constexpr, WORDS: gl.constexpr
):  # fmt: skip
    """Ask for an input row's pixels and the one on either side, to come to a slot; outside the image is the border."""
    PIXELS: gl.constexpr = 16 * gl.num_warps()
    ACROSS: gl.constexpr = WORDS // 4
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [32 // ACROSS, ACROSS], [gl.num_warps(), 1], [1, 0])
    image, x0, strides, height, width = place
    col = x0 - 1 + gl.arange(0, PIXELS, layout=gl.SliceLayout(1, layout))
    last = x0 + PIXELS + gl.minimum(gl.arange(0, BESIDE, layout=gl.SliceLayout(1, layout)) - 1, 0)
    word = gl.arange(0, WORDS, layout=gl.SliceLayout(0, layout)).expand_dims(0)
    row_stride, unit_stride = strides
    line = image + gl.minimum(gl.maximum(row, 0), height - 1) * row_stride
    near = (gl.minimum(gl.maximum(col, 0), width - 1) * (4 * unit_stride)).expand_dims(1)
    beside = (gl.minimum(last, width - 1) * (4 * unit_stride)).expand_dims(1)
    SHAPE: gl.constexpr = [PIXELS, WORDS]
    BESIDES: gl.constexpr = [BESIDE, WORDS]
    for chunk in gl.static_range(CHUNKS):
        box = box_of(held, slot * CHUNKS + chunk, PIXELS + BESIDE)
        own = reach(box, 0, PIXELS, gl.int32, SHAPE, FLAT)
        rest = reach(box, PIXELS, BESIDE, gl.int32, BESIDES, FLAT)
        here = word + chunk * WORDS
        # Past the L1 where 16 bytes are copied at a time: it doesn't learn before a wait what others wrote.
        if chunk * WORDS + WORDS > IN_WORDS:  # what is masked is written as zeros
            copy_to_shared(own, line + (near + here), mask=here < IN_WORDS, cache_modifier=".cg")
            copy_to_shared(rest, line + (beside + here), mask=here < IN_WORDS, cache_modifier=".cg")
        else:
            copy_to_shared(own, line + (near + here), cache_modifier=".cg")
            copy_to_shared(rest, line + (beside + here), cache_modifier=".cg")
    async_copy.commit_group()


@gluon.jit
def _read_row(held, slot, CHUNK: gl.constexpr, CHUNKS: gl.constexpr, WORDS: gl.constexpr):
    """Read the row that `_load_row` gives from its slot in shared memory."""
    PIXELS: gl.constexpr = 16 * gl.num_warps()
    layout: gl.constexpr = quads.row_layout(WORDS // 4, WORDS, gl.num_warps())
    box = box_of(held, slot * CHUNKS + CHUNK, PIXELS + BESIDE)
    SHAPE: gl.constexpr = [PIXELS, WORDS]
    parts = ()
    for shift in gl.static_range(3):
        seen = reach(box, shift, PIXELS, gl.int32, SHAPE, FLAT)
        parts = parts + (seen.load(layout),)  # type: ignore[assignment]
    return parts


@gluon.jit
def _within_image(parts, row, x0, height, width, CHUNK: gl.constexpr, IN_WORDS: gl.constexpr, WORDS: gl.constexpr):
    """Return the loaded row with 0 outside the image; sums right of it aren't stored: each shift has one border."""
    layout: gl.constexpr = quads.row_layout(WORDS // 4, WORDS, gl.num_warps())
    col = (x0 + gl.arange(0, 16 * gl.num_warps(), layout=gl.SliceLayout(1, layout))).expand_dims(1)
    word = CHUNK * WORDS + gl.arange(0, WORDS, layout=gl.SliceLayout(0, layout)).expand_dims(0)
    inside = (row >= 0) & (row < height) & (word < IN_WORDS)
    left = gl.where(inside & (col > 0), parts[0], 0)
    middle = gl.where(inside & (col >= 0), parts[1], 0)
    return left, middle, gl.where(inside & (col < width - 1), parts[2], 0)


@gluon.jit
def operands_of(
    parts, ends, row, x0, height, width, CHUNK: gl.constexpr, IN_WORDS: gl.constexpr, WORDS: gl.constexpr,
    NORM: gl.constexpr, sums: gl.constexpr, dtype: gl.constexpr,
):  # fmt: skip
    """Return the loaded row, normalised if there is a norm, as first operands of products; 0 outside the image."""
    if NORM is None:
        left, middle, right = _within_image(parts, row, x0, height, width, CHUNK, IN_WORDS, WORDS)
    else:
        left, middle, right = (
            normalised(parts[0], ends, NORM), normalised(parts[1], ends, NORM), normalised(parts[2], ends, NORM)
        )  # fmt: skip
        # Most strips have no border, and nothing to select then; without a norm ptxas would select both ways.
        if (
            (row < 0)
            | (row >= height)
            | (x0 == 0)
            | (x0 + 16 * gl.num_warps() >= width)
            | (WORDS > IN_WORDS - CHUNK * WORDS)
        ):
            left, middle, right = _within_image((left, middle, right), row, x0, height, width, CHUNK, IN_WORDS, WORDS)
    return (
        quads.as_operand(left, sums, dtype),
        quads.as_operand(middle, sums, dtype),
        quads.as_operand(right, sums, dtype),
    )


@gluon.jit
def taps_of(held, DOWN: gl.constexpr, shift: gl.constexpr, CHUNK: gl.constexpr, CHUNKS: gl.constexpr):
    """Load the weights of a tap and a chunk of channels as the second operand of a product."""
    return held.index((3 * DOWN + shift) * CHUNKS + CHUNK).permute((1, 0))


MOST_IN, MOST_OUT = 64, 32  # more would not fit in the registers
FEW_OUT, FEW_BYTES = 16, 64  # output channels, or bytes an input pixel, with which this kernel is the fastest


@dataclass(frozen=True)
class Tile:
    """A cut of the work: strips of `rows` × 16 · `warps` pixels and all output channels."""

    kernel: ClassVar[str] = "conv3x3_narrow"
    rows: int  # two less than a multiple of 3, as the three output rows in work take turns
    warps: int = 4  # of a program, 4 or 8
    programs: int = 4  # on each multiprocessor
    ahead: int = 1  # chunks of a row's channels on their way to registers while one is multiplied; without slots
    slots: int = 0  # rows that there is shared memory for; for none they come straight to registers


@gluon.jit
def _store_planar(y, image, row, x0, inside, height, width, CHANNELS: gl.constexpr):
    """Y [pixels, OUT] in fp32 as a row of an image [channels, height, width], where `inside`."""
    layout: gl.constexpr = y.type.layout
    col = (x0 + gl.arange(0, 16 * gl.num_warps(), layout=gl.SliceLayout(1, layout))).expand_dims(1)
    channel = gl.arange(0, y.shape[1], layout=gl.SliceLayout(0, layout)).expand_dims(0)
    line = image + row * width
    gl.store(line + (channel * height * width + col), y, mask=(col < width) & (channel < CHANNELS) & inside)


@gluon.jit
def _products(seen, held, above, here, below, chunk: gl.constexpr, CHUNKS: gl.constexpr):
    """Add the products of a chunk of an input row's channels, at three shifts, to the sums of three output rows."""
    for shift in gl.static_range(3):  # in turns: a product need not wait for the sums of the one before it
        above = warpgroup_mma(seen[shift], taps_of(held, 2, shift, chunk, CHUNKS), above, is_async=True)
        here = warpgroup_mma(seen[shift], taps_of(held, 1, shift, chunk, CHUNKS), here, is_async=True)
        taps = taps_of(held, 0, shift, chunk, CHUNKS)
        below = warpgroup_mma(seen[shift], taps, below, use_acc=chunk + shift > 0, is_async=True)
    return warpgroup_mma_wait(0, deps=(above, here, below))


@gluon.jit(do_not_specialize=["rows", "tiles_y", "tiles_x", "tiles"])
def conv3x3_rows(
    x, weight, out, scale, bias, statistics, norm_mean, norm_variance, norm_weight, norm_bias, eps, added, added_scale,
    added_image_stride, added_row_stride, added_unit, x_image_stride, x_row_stride, x_unit, out_image_stride,
    out_row_stride, out_unit, height, width, rows, tiles_y, tiles_x, tiles, IN: gl.constexpr, CHANNELS: gl.constexpr,
    DEPTH: gl.constexpr, CHUNKS: gl.constexpr, OUT: gl.constexpr, GROUP: gl.constexpr, AHEAD: gl.constexpr,
    SLOTS: gl.constexpr, PLANAR: gl.constexpr, NORM: gl.constexpr, MERGED: gl.constexpr, ACTIVATION: gl.constexpr,
    SLOPE: gl.constexpr, SCALED: gl.constexpr, EARLY: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Read x [N, H, W, IN], as words of 32 bits, and weight [9, CHANNELS, IN]; write out [N, H, W, CHANNELS].

    Where PLANAR it is [N, CHANNELS, H, W]. NORM and what is named after it are of a norm of x; where that was MERGED
    right before, by who has waited for x, the first rows needn't wait. `added` is a residual of the shape of out.
    """
    dtype: gl.constexpr = weight.dtype.element_ty
    WORDS: gl.constexpr = DEPTH * dtype.primitive_bitwidth // 32
    IN_WORDS: gl.constexpr = IN * dtype.primitive_bitwidth // 32
    sums: gl.constexpr = quads.sums_layout(OUT, dtype, num_warps)
    COLS: gl.constexpr = 16 * num_warps
    strides, norm = (x_row_stride, x_unit), (norm_mean, norm_variance, norm_weight, norm_bias)
    added_steps = (added_row_stride, added_unit)
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([OUT, DEPTH], dtype)
    held = gl.allocate_shared_memory(dtype, [9 * CHUNKS, OUT, DEPTH], shared)
    slots = held
    if SLOTS > 0:  # a plane for each pixel of each chunk of a row's channels
        slots = gl.allocate_shared_memory(gl.int32, [SLOTS * CHUNKS * (COLS + BESIDE), 1, WORDS], FLAT)
    let_the_next_begin()
    if not EARLY:
        wait_for_those_before()
    hold_weights(weight, held, CHANNELS, IN, DEPTH, CHUNKS, OUT, GROUP)
    ends = quads.load_ends(scale, bias, CHANNELS, SCALED, GROUP, OUT, sums)
    if not MERGED:
        wait_for_those_before()
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        # As norms' passes go: from the end, which the layer before wrote last (`norm_pass`).
        spot = tile if NORM is None else tiles - 1 - tile
        number = spot // tiles_x // tiles_y
        y0, x0 = spot // tiles_x % tiles_y * rows, spot % tiles_x * COLS
        image = x + number.to(gl.int64) * x_image_stride
        target = out + number.to(gl.int64) * out_image_stride
        beside = None if added is None else added + number.to(gl.int64) * added_image_stride
        place = (image, x0, strides, height, width)
        queue, slot = first_rows(slots, y0, place, AHEAD, SLOTS, CHUNKS, IN_WORDS, WORDS), 0
        if MERGED:
            wait_for_those_before()
        normed = ()
        for chunk in gl.static_range(CHUNKS):
            normed = normed + (load_norm(norm, eps, number, chunk, IN_WORDS, WORDS, NORM),)  # type: ignore[assignment]
        above = gl.zeros([COLS, OUT], gl.float32, sums)
        here = gl.zeros([COLS, OUT], gl.float32, sums)
        mean, squares = quads.nothing_counted(COLS, OUT, sums)
        counted = number.to(gl.int64) * ((height + 7) // 8) * ((width + 15) // 16) * (2 * CHANNELS)
        for turn in range(0, gl.minimum(rows, height - y0) + 2, 3):
            for step in gl.static_range(3):
                row = y0 - 1 + turn + step
                residual = quads.load_added(beside, row - 1, x0, added_steps, height, width, CHANNELS, OUT, GROUP)
                below = gl.zeros([COLS, OUT], gl.float32, sums)
                for chunk in gl.static_range(CHUNKS):
                    parts, queue = next_chunk(
                        queue, slots, slot, row, place, chunk, AHEAD, SLOTS, CHUNKS, IN_WORDS, WORDS
                    )
                    seen = operands_of(
                        parts, normed[chunk], row, x0, height, width, chunk, IN_WORDS, WORDS, NORM, sums, dtype
                    )
                    above, here, below = _products(seen, held, above, here, below, chunk, CHUNKS)
                slot = (slot + 1) % SLOTS if SLOTS > 0 else 0
                y = quads.finish_rows(above, ends, SCALED, ACTIVATION, SLOPE, residual, added_scale, GROUP)
                inside = (row > y0) & (row <= height)
                if PLANAR:
                    _store_planar(y, target, row - 1, x0, inside, height, width, CHANNELS)
                else:
                    quads.store_row(
                        y, target + (row - 1) * out_row_stride, x0, out_unit, inside, width, CHANNELS, GROUP
                    )
                if statistics is not None:
                    mean, squares = quads.count_row(
                        y, mean, squares, statistics + counted, row - 1, x0, inside, height, width, CHANNELS, GROUP
                    )
                above, here = here, below
        if SLOTS > 0:
            async_copy.wait_group(0)  # of rows below the strip, before another's come to their slots


def queue(
    x: Tensor, weight: Tensor, epilogue: Epilogue, out: Tensor, tile: Tile, *, planar: bool = False,
    statistics: Tensor | None = None, norm: NormOnLoad | None = None,
) -> None:  # fmt: skip
    """Queue the convolution of checked x by contiguous weight; `planar`, out is [N, out, H, W] fp32."""
    batch, height, width, inner = x.shape
    outer = weight.shape[1]
    words = x.view(torch.int32)
    depth = max(32 // x.element_size(), min(next_power_of_two(inner), 64 // x.element_size()))
    columns = max(8, next_power_of_two(outer))
    out_unit = out.stride(2) * out.element_size() // 16
    strides = (out.stride(0), 0, 0) if planar else (out.stride(0), out.stride(1), out_unit)
    tiles_y, tiles_x = -(-height // tile.rows), -(-width // (16 * tile.warps))
    tiles = batch * tiles_y * tiles_x
    on_grid(conv3x3_rows, min(tiles, multiprocessors(x.device) * tile.programs))(
        words, weight, out, epilogue.factors, epilogue.bias, statistics, *((None,) * 5 if norm is None else norm[:5]),
        *_added(epilogue), words.stride(0), words.stride(1), words.stride(2) // 4, *strides, height, width, tile.rows,
        tiles_y, tiles_x, tiles, IN=inner, CHANNELS=outer, DEPTH=depth, CHUNKS=-(-inner // depth), OUT=columns,
        GROUP=8 if planar else min(columns, 64 // out.element_size()), AHEAD=0 if tile.slots else tile.ahead,
        SLOTS=tile.slots, PLANAR=planar, NORM=None if norm is None else norm.instructions,
        MERGED=norm is not None and tile.slots > 0 and past_the_l1(words), SCALED=epilogue.scale is not None,
        EARLY=epilogue.early, **epilogue.constants, num_warps=tile.warps,
        maxnreg=quads.registers(tile.warps, tile.programs), **DEPENDENT,
    )  # fmt: skip


def past_the_l1(words: Tensor) -> bool:
    """Return whether rows come to shared memory past the L1 (cp.async.cg): where steps are multiples of 16."""
    return words.stride(0) % 16 == 0 and words.stride(1) % 16 == 0


def _added(epilogue: Epilogue) -> tuple[Tensor | None, float | None, int, int, int]:
    """Return a residual, the value of a stored unit, and the strides of image, row and pixel."""
    residual = epilogue.residual
    if residual is None:
        return None, None, 0, 0, 0
    unit = residual.stride(2) * residual.element_size() // 16
    return residual, epilogue.residual_scale, residual.stride(0), residual.stride(1), unit


def launch(operands: Operands, tile: Tile, norm: NormOnLoad | None = None) -> None:
    """Queue the convolution of checked operands, after a norm if there is one; raise ValueError for other strips."""
    x, weight, epilogue, outputs = operands
    if not weight.is_contiguous() or not suits(x, weight.shape[1], epilogue):
        taken = f"at most {MOST_IN} channels to {MOST_OUT} and folds statistics and a residual"
        raise ValueError(f"this tile takes {taken}")
    check_blocks(epilogue, tile.rows, 16 * tile.warps)
    check_counted("x", x)  # in 64 bits some tiles spill more registers
    check_counted("out", required(outputs.out))
    if epilogue.residual is not None:
        check_counted("residual", epilogue.residual)
    queue(x, weight, epilogue, required(outputs.out), tile, statistics=outputs.statistics, norm=norm)


def suits(x: Tensor, outer: int, epilogue: Epilogue) -> bool:
    """Return whether the kernel takes x [N, H, W, in], `outer` output channels and the epilogue."""
    plain = epilogue.parts <= {"statistics", "residual"}
    return plain and x.shape[3] <= MOST_IN and outer <= MOST_OUT


def pays(inner: int, outer: int, size: int = 2) -> bool:
    """Return whether there are tiles for these channels of `size` bytes; `conv3x3_gluon` is faster for the others."""
    return inner <= MOST_IN and (outer <= FEW_OUT or (outer <= MOST_OUT and inner * size <= FEW_BYTES))


def candidates(x: Tensor, outer: int, *, ends: bool = False) -> Iterator[Tile]:
    """Yield tiles worth measuring, likeliest first; with `ends` (statistics, a residual) registers are fewer."""
    pixel = x.shape[3] * x.element_size()
    if not pays(x.shape[3], outer, x.element_size()):
        return
    if reaching_views_barred() is None:
        few = outer <= FEW_OUT or (x.element_size() == 1 and not ends)
        ways = [(3 if ends else 4, 0, 4), (4, 0, 3)] if few else [(3, 0, 3), (2, 0, 4)]
    elif outer <= FEW_OUT:
        near, far = (2, 3) if pixel <= FEW_BYTES // 2 else (1, 2)
        ways = [(4, near, 0), (3 if ends else 4, far, 0)]
    else:
        ways = [(2, 3, 0), (3, 2, 0)] if pixel > 32 or x.element_size() == 2 else [(3, 2, 0), (3, 1, 0)]
    for programs, ahead, slots in ways:
        for rows in strips_of(x, programs):
            yield Tile(rows, 4, programs, ahead, slots)


def strips_of(x: Tensor, programs: int) -> list[int]:
    """Return the heights of strips worth measuring for x [N, H, W, in] and `programs` on each multiprocessor."""
    batch, height, width, _ = x.shape
    return evenest(batch, height, width, multiprocessors(x.device) * programs)
