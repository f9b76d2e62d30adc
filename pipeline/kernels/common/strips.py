"""Products whose rows are pixels, fed from registers, and rows of NHWC maps on their way there.

The idea: wgmma gives the four threads of a quad every fourth pair of a pixel's channels. The sum over channels doesn't
mind their order, so the weights are put in another order as they enter shared memory, once a program, and each thread
reads, and later writes, neighbouring channels of one pixel, 16 bytes at a time.

Rows come to shared memory long before they are read. From there each is read at three horizontal shifts in that layout,
and may be normed on the way.
"""

from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from pipeline.kernels.common.epilogue import Epilogue
from pipeline.kernels.common.nhwc import next_power_of_two
from pipeline.kernels.common.program import DEPENDENT
from pipeline.kernels.common.tma import box_of, reach

# Triton 3.7 renamed it.
wait_for_all_warps = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
# Triton 3.8 renamed it.
copy_to_shared = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))  # pixel after pixel
BESIDE = gl.constexpr(8)  # pixels of a slot beyond a strip's own: two are read
HALF_MAX = gl.constexpr(65504.0)


@gluon.constexpr_function
def row_layout(run: int, wide: int, warps: int) -> gl.DistributedLinearLayout:
    """Pixels × channels [16 · warps, wide]: of pixels p and p + 8 a thread has `run` channels of each 4 · run."""
    within, beyond = run.bit_length() - 1, (wide // (4 * run)).bit_length() - 1
    registers = [[0, 1 << bit] for bit in range(within)]
    registers += [[0, 4 * run << bit] for bit in range(beyond)] + [[8, 0]]
    lanes = [[0, run], [0, 2 * run], [1, 0], [2, 0], [4, 0]]
    groups = [[16 << bit, 0] for bit in range(warps.bit_length() - 1)]
    return gl.DistributedLinearLayout(registers, lanes, groups, [], [16 * warps, wide])


@gluon.constexpr_function
def sums_layout(out: int, dtype: tl.dtype, warps: int) -> gl.NVMMADistributedLayout:
    """Pixels × channels [16 · warps, out] as wgmma leaves its sums of products of `dtype`."""
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, out, 256 // dtype.primitive_bitwidth])


@gluon.jit
def channel_written(column, GROUP: gl.constexpr):
    """Return the channel of a column of the product: a thread's pairs of a group of columns are put side by side."""
    within = column % GROUP
    return column - within + within % 8 // 2 * (GROUP // 4) + within // 8 * 2 + within % 2


@gluon.jit
def as_operand(words, sums: gl.constexpr, dtype: gl.constexpr):
    """Pixels × channels of `dtype`, loaded in `row_layout` as words of 32 bits, as a product's first operand."""
    ROWS: gl.constexpr = words.shape[0]
    WORDS: gl.constexpr = words.shape[1]
    WIDTH: gl.constexpr = 32 // dtype.primitive_bitwidth
    words = words.reshape([ROWS, 4, WORDS // 4]).permute((0, 2, 1)).reshape([ROWS, WORDS])
    if WIDTH == 2:
        parts = gl.join(words.to(gl.int16), (words >> 16).to(gl.int16))
    else:
        even = gl.join(words.to(gl.int8), (words >> 16).to(gl.int8))
        odd = gl.join((words >> 8).to(gl.int8), (words >> 24).to(gl.int8))
        parts = gl.join(even, odd)
    values = parts.reshape([ROWS, WORDS * WIDTH]).to(dtype, bitcast=True)
    return gl.convert_layout(values, gl.DotOperandLayout(0, sums, WIDTH), assert_trivial=True)


@gluon.jit
def in_order(y, GROUP: gl.constexpr):
    """Return sums [16 · warps, out] with their channels in order, in `row_layout`; nothing moves."""
    ROWS: gl.constexpr = y.shape[0]
    OUT: gl.constexpr = y.shape[1]
    parts = y.reshape([ROWS, OUT // GROUP, GROUP // 8, 4, 2]).permute((0, 1, 3, 2, 4)).reshape([ROWS, OUT])
    return gl.convert_layout(parts, row_layout(GROUP // 4, OUT, gl.num_warps()), assert_trivial=True)


@gluon.jit
def in_columns(values, GROUP: gl.constexpr, sums: gl.constexpr):
    """Channels in order [16 · warps, out], in `row_layout`, where the product has its sums; nothing moves."""
    ROWS: gl.constexpr = values.shape[0]
    OUT: gl.constexpr = values.shape[1]
    parts = values.reshape([ROWS, OUT // GROUP, 4, GROUP // 8, 2]).permute((0, 1, 3, 2, 4)).reshape([ROWS, OUT])
    return gl.convert_layout(parts, sums, assert_trivial=True)


@gluon.jit
def load_added(
    image, row, x0, steps, height, width, CHANNELS: gl.constexpr, OUT: gl.constexpr, GROUP: gl.constexpr
):  # fmt: skip
    """Load a row of a residual [16 · warps, OUT] in `row_layout`, or the image's border; nothing without `image`."""
    values = ()
    if image is not None:
        row_stride, unit_stride = steps
        UNIT: gl.constexpr = 128 // image.dtype.element_ty.primitive_bitwidth
        layout: gl.constexpr = row_layout(GROUP // 4, OUT, gl.num_warps())
        line = image + gl.minimum(gl.maximum(row, 0), height - 1) * row_stride
        col = gl.minimum(x0 + gl.arange(0, 16 * gl.num_warps(), layout=gl.SliceLayout(1, layout)), width - 1)
        channel = gl.arange(0, OUT, layout=gl.SliceLayout(0, layout)).expand_dims(0)
        known = None if CHANNELS == OUT else channel < CHANNELS
        values = (gl.load(line + ((col * (UNIT * unit_stride)).expand_dims(1) + channel), mask=known),)  # type: ignore[assignment]
    return values


@gluon.jit
def load_ends(
    scale, bias, CHANNELS: gl.constexpr,
    SCALED: gl.constexpr, GROUP: gl.constexpr, OUT: gl.constexpr, sums: gl.constexpr, FOLD: gl.constexpr = 1,
):  # fmt: skip
    """Scale and bias [OUT] of the product's columns; 0 for those beyond CHANNELS, which are those of FOLD pixels."""
    channel = channel_written(gl.arange(0, OUT, layout=gl.SliceLayout(0, sums)), GROUP)
    own = channel % (CHANNELS // FOLD)
    shift = gl.load(bias + own, mask=channel < CHANNELS, other=0.0)
    factor = gl.load(scale + own, mask=channel < CHANNELS, other=0.0) if SCALED else shift
    return factor, shift


@gluon.jit
def finish_rows(
    acc, ends, SCALED: gl.constexpr, ACTIVATION: gl.constexpr, SLOPE: gl.constexpr,
    residual=None, unit=None, GROUP: gl.constexpr = 0,
):  # fmt: skip
    """ACTIVATION(acc · factor[o] + shift[o] + residual · unit) for acc [pixels, out], as `load_added` loads."""
    factor, shift = ends
    if SCALED:
        acc = acc * factor.expand_dims(0)
    acc = acc + shift.expand_dims(0)
    if unit is not None:
        sums: gl.constexpr = acc.type.layout
        acc = acc + in_columns(residual[0], GROUP, sums).to(gl.float32) * unit
    return ACTIVATION(acc, SLOPE)


@gluon.jit
def store_row(
    y, line, x0, unit_stride, inside, width, CHANNELS: gl.constexpr, GROUP: gl.constexpr,
    MAPS: gl.constexpr = 1, step=0, FOLD: gl.constexpr = 1,
):  # fmt: skip
    """Y [pixels, OUT], where `inside`, into an NHWC output's row at `line`, counted in units of 16 bytes.

    The channels may be those of several MAPS, one `step` after the other, or of FOLD pixels, of which x0 counts units.
    """
    values = in_order(y.to(line.dtype.element_ty), GROUP)
    store_ordered(values, line, x0, unit_stride, inside, width, CHANNELS, MAPS, step, FOLD)


@gluon.jit
def store_ordered(
    values, line, x0, unit_stride, inside, width, CHANNELS: gl.constexpr, MAPS: gl.constexpr = 1, step=0,
    FOLD: gl.constexpr = 1,
):  # fmt: skip
    """Values [pixels, channels] whose channels are in order; otherwise as `store_row`."""
    UNIT: gl.constexpr = 128 // values.dtype.primitive_bitwidth
    layout: gl.constexpr = values.type.layout
    col = (x0 + gl.arange(0, values.shape[0], layout=gl.SliceLayout(1, layout))).expand_dims(1)
    channel = gl.arange(0, values.shape[1], layout=gl.SliceLayout(0, layout)).expand_dims(0)
    EACH: gl.constexpr = CHANNELS // (MAPS * FOLD)
    col = FOLD * col + channel // EACH if FOLD > 1 else col
    seen = (col < width) & (channel < CHANNELS) & inside
    if MAPS * FOLD > 1:
        channel = channel // EACH * step + channel % EACH
    gl.store(line + (col * (UNIT * unit_stride) + channel), values, mask=seen)


@gluon.jit
def _pairs_of(y):
    """Split y [16 · blocks, OUT] into the first and last 8 pixels of a block, [blocks, 8, OUT]; a thread has both."""
    return y.reshape([y.shape[0] // 16, 2, 8, y.shape[1]]).permute((0, 2, 3, 1)).split()


@gluon.jit
def nothing_counted(PIXELS: gl.constexpr, OUT: gl.constexpr, sums: gl.constexpr):
    """Mean and squared deviations as `count_row` begins with."""
    nothing, _ = _pairs_of(gl.zeros([PIXELS, OUT], gl.float32, sums))
    return nothing, nothing


@gluon.jit
def count_row(
    y, mean, squares, statistics, line, x0, inside, height, width, CHANNELS: gl.constexpr, GROUP: gl.constexpr,
    MAPS: gl.constexpr = 1, step=0,
):  # fmt: skip
    """Take row `line` of y [16 · blocks, OUT], if `inside`, into what was counted of each pair of values so far.

    By Welford's formula (1962): `mean` is that of the sums of a thread's two pixels, `squares` twice the pair's squared
    deviations. After a block's or the image's last row they go to statistics [blocks, 2, CHANNELS] of the image.
    """
    if inside:
        near, far = _pairs_of(y)
        layout: gl.constexpr = near.type.layout
        flat: gl.constexpr = gl.SliceLayout(1, layout)
        column = gl.arange(0, 8, layout=gl.SliceLayout(0, gl.SliceLayout(2, layout))).expand_dims(0).expand_dims(2)
        block = gl.arange(0, y.shape[0] // 16, layout=gl.SliceLayout(1, gl.SliceLayout(2, layout)))
        first = x0 + 16 * block.expand_dims(1).expand_dims(2) + column
        seen = (line % 8 + 1).to(gl.float32)
        if x0 + y.shape[0] > width:
            far = gl.where(first + 8 < width, far, near)
        both, apart = near + far, far - near
        away = both - mean
        mean = mean + away * (1.0 / seen)
        squares = squares + apart * apart + away * (both - mean)
        if (line % 8 == 7) | (line == height - 1):
            OUT: gl.constexpr = y.shape[1]
            known = ((first < width).to(gl.float32) + (first + 8 < width).to(gl.float32)) * 0.5
            left = x0 + 16 * gl.arange(0, y.shape[0] // 16, layout=gl.SliceLayout(1, flat)).expand_dims(1)
            columns = gl.minimum(gl.maximum(width - left, 1), 16).to(gl.float32)
            whole = gl.sum(mean * known, axis=1) / columns
            between = mean - 2 * whole.expand_dims(1)
            spread = (squares + between * between * seen) * (known * 0.5)
            channel = channel_written(gl.arange(0, OUT, layout=gl.SliceLayout(0, flat)), GROUP).expand_dims(0)
            entry = line // 8 * ((width + 15) // 16) + left // 16
            EACH: gl.constexpr = CHANNELS // MAPS
            at = statistics + entry * (2 * EACH) + channel // EACH * step + channel % EACH
            stored = (left < width) & (channel < CHANNELS)
            gl.store(at, whole, mask=stored)
            gl.store(at + EACH, gl.sum(spread, axis=1), mask=stored)
            mean = gl.zeros_like(mean)
            squares = gl.zeros_like(squares)
    return mean, squares


def constants(epilogue: Epilogue, outer: int, size: int, warps: int, programs: int) -> dict[str, object]:
    """Return the constants and options of a kernel that stores `outer` channels of `size` bytes of each pixel."""
    columns = max(8, next_power_of_two(outer))
    registers = min(255, 65536 // (32 * warps * programs) // 8 * 8)  # a thread's: programs share a multiprocessor's
    return {
        "CHANNELS": outer, "OUT": columns, "GROUP": min(columns, 64 // size), "SCALED": epilogue.scale is not None,
        **epilogue.constants, "num_warps": warps, "maxnreg": registers, **DEPENDENT,
    }  # fmt: skip


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
def pairs(low, high):
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
        layout: gl.constexpr = row_layout(WORDS // 4, WORDS, gl.num_warps())
        channel = 2 * (CHUNK * WORDS + gl.arange(0, WORDS, layout=gl.SliceLayout(0, layout)).expand_dims(0))
        low = _ends(norm, eps, number, channel, 2 * IN_WORDS)
        high = _ends(norm, eps, number, channel + 1, 2 * IN_WORDS)
        ends = (pairs(low[0], high[0]), pairs(low[1], high[1]), pairs(low[2], high[2]))  # type: ignore[assignment]
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
def of_units(tap, outer, inner, CHANNELS: gl.constexpr, IN: gl.constexpr, FOLD: gl.constexpr):
    """Where in a weight [9, CHANNELS / FOLD, IN / FOLD] the tap of a window of units of FOLD pixels is, if anywhere.

    An output pixel takes the input pixels to its left, at its place and to its right.
    """
    WRITTEN: gl.constexpr = CHANNELS // FOLD
    READ: gl.constexpr = IN // FOLD
    across = FOLD * (tap % 3 - 1) + inner // READ - outer // WRITTEN + 1
    at = ((tap // 3 * 3 + across) * WRITTEN + outer % WRITTEN) * READ + inner % READ
    return at, (across >= 0) & (across < 3)


@gluon.jit
def hold(
    weight, held, AT: gl.constexpr, TAPS: gl.constexpr, CHANNELS: gl.constexpr, IN: gl.constexpr, DEPTH: gl.constexpr,
    CHUNKS: gl.constexpr, OUT: gl.constexpr, GROUP: gl.constexpr, FOLD: gl.constexpr,
):  # fmt: skip
    """Taps from where AT finds them into shared memory [... · CHUNKS, OUT, DEPTH], in the order of `channel_written`.

    TAPS of them are on their way before the first is stored.
    """
    WIDTH: gl.constexpr = 32 // held.dtype.primitive_bitwidth
    spread: gl.constexpr = gl.BlockedLayout([1, 8], [8, 4], [gl.num_warps(), 1], [1, 0])
    column = gl.arange(0, OUT, layout=gl.SliceLayout(1, spread))
    entry = gl.arange(0, DEPTH, layout=gl.SliceLayout(0, spread))
    outer = channel_written(column, GROUP).expand_dims(1)
    # The channel of an entry of the product's inner dimension: entry = WIDTH (4 part + thread) + element.
    inner = entry // WIDTH % 4 * (DEPTH // 4) + entry // (4 * WIDTH) * WIDTH + entry % WIDTH
    inner = inner.expand_dims(0)
    for part in gl.static_range(held.shape[0] // TAPS):
        here, taps = inner + part % CHUNKS * DEPTH, ()
        for tap in gl.static_range(TAPS):
            at, known = AT(part // CHUNKS * TAPS + tap, outer, here, CHANNELS, IN, FOLD)
            known = known & (outer < CHANNELS) & (here < IN)
            taps = taps + (gl.load(weight + at, mask=known, other=0.0),)  # type: ignore[assignment]
        for tap in gl.static_range(TAPS):
            held.index((part // CHUNKS * TAPS + tap) * CHUNKS + part % CHUNKS).store(taps[tap])
    fence_async_shared()
    wait_for_all_warps()


@gluon.jit
def ask_for_row(
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
def read_shift(slots, slot, SHIFT: gl.constexpr, CHUNK: gl.constexpr, CHUNKS: gl.constexpr, WORDS: gl.constexpr):
    """Read a chunk of a slot's row [16 · warps, WORDS] from the pixel before the strip, its first or its second on."""
    PIXELS: gl.constexpr = 16 * gl.num_warps()
    box = box_of(slots, slot * CHUNKS + CHUNK, PIXELS + BESIDE)
    SHAPE: gl.constexpr = [PIXELS, WORDS]
    return reach(box, SHIFT, PIXELS, gl.int32, SHAPE, FLAT).load(row_layout(WORDS // 4, WORDS, gl.num_warps()))


@gluon.jit
def read_row(slots, slot, CHUNK: gl.constexpr, CHUNKS: gl.constexpr, WORDS: gl.constexpr):
    """Read a chunk of a slot's row at all three shifts."""
    return (
        read_shift(slots, slot, 0, CHUNK, CHUNKS, WORDS),
        read_shift(slots, slot, 1, CHUNK, CHUNKS, WORDS),
        read_shift(slots, slot, 2, CHUNK, CHUNKS, WORDS),
    )


@gluon.jit
def within_image(
    words, SHIFT: gl.constexpr, row, x0, height, width, CHUNK: gl.constexpr, IN_WORDS: gl.constexpr,
    WORDS: gl.constexpr,
):  # fmt: skip
    """Return a row read at a shift with 0 outside the image; sums right of it aren't stored: a shift has one border."""
    layout: gl.constexpr = row_layout(WORDS // 4, WORDS, gl.num_warps())
    col = (x0 + gl.arange(0, 16 * gl.num_warps(), layout=gl.SliceLayout(1, layout))).expand_dims(1)
    word = CHUNK * WORDS + gl.arange(0, WORDS, layout=gl.SliceLayout(0, layout)).expand_dims(0)
    inside = (row >= 0) & (row < height) & (word < IN_WORDS)
    if SHIFT == 2:
        return gl.where(inside & (col < width - 1), words, 0)
    return gl.where(inside & (col >= 1 - SHIFT), words, 0)


@gluon.jit
def operands_of(
    parts, ends, row, x0, height, width, CHUNK: gl.constexpr, IN_WORDS: gl.constexpr, WORDS: gl.constexpr,
    NORM: gl.constexpr, sums: gl.constexpr, dtype: gl.constexpr,
):  # fmt: skip
    """Return the loaded row, normalised if there is a norm, as first operands of products; 0 outside the image."""
    if NORM is None:
        left = within_image(parts[0], 0, row, x0, height, width, CHUNK, IN_WORDS, WORDS)
        middle = within_image(parts[1], 1, row, x0, height, width, CHUNK, IN_WORDS, WORDS)
        right = within_image(parts[2], 2, row, x0, height, width, CHUNK, IN_WORDS, WORDS)
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
            left = within_image(left, 0, row, x0, height, width, CHUNK, IN_WORDS, WORDS)
            middle = within_image(middle, 1, row, x0, height, width, CHUNK, IN_WORDS, WORDS)
            right = within_image(right, 2, row, x0, height, width, CHUNK, IN_WORDS, WORDS)
    return (
        as_operand(left, sums, dtype),
        as_operand(middle, sums, dtype),
        as_operand(right, sums, dtype),
    )


@gluon.jit
def taps_of(held, DOWN: gl.constexpr, shift: gl.constexpr, CHUNK: gl.constexpr, CHUNKS: gl.constexpr):
    """Load the weights of a tap and a chunk of channels as the second operand of a product."""
    return held.index((3 * DOWN + shift) * CHUNKS + CHUNK).permute((1, 0))


def steps_of(stored: Tensor) -> tuple[int, int, int]:
    """Return the strides of an output's images and rows, and its pixels' in units of 16 bytes."""
    return stored.stride(0), stored.stride(1), stored.stride(2) * stored.element_size() // 16


def folded(pixels: Tensor, fold: int) -> Tensor:
    """Return a map [N, H, W, channels] whose pixels lie side by side as one of W / fold units; raise ValueError."""
    if fold == 1:
        return pixels
    width, channels = pixels.shape[2:]
    if width % fold or pixels.stride(2) != channels:
        raise ValueError(f"units of {fold} pixels need rows of them without gaps, got {list(pixels.stride())}")
    units: Tensor = pixels.unflatten(2, (-1, fold))
    return units.flatten(3)


def past_the_l1(words: Tensor) -> bool:
    """Return whether rows come to shared memory past the L1 (cp.async.cg): where steps are multiples of 16."""
    return words.stride(0) % 16 == 0 and words.stride(1) % 16 == 0
