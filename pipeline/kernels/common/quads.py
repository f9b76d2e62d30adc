"""Products whose rows are pixels, fed from registers: which channel each of a quad's four threads reads and writes.

The idea: wgmma gives the four threads of a quad every fourth pair of a pixel's channels. The sum over channels doesn't
mind their order, so the weights are put in another order as they enter shared memory, once a program, and each thread
reads, and later writes, neighbouring channels of one pixel, 16 bytes at a time.
"""

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from pipeline.kernels.common.epilogue import Epilogue
from pipeline.kernels.common.nhwc import next_power_of_two
from pipeline.kernels.common.program import DEPENDENT

# Triton 3.7 renamed it.
wait_for_all_warps = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier


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
def channel_read(entry, DEPTH: gl.constexpr, WIDTH: gl.constexpr):
    """Return the channel of an entry of the product's inner dimension: entry = WIDTH (4 part + thread) + element."""
    return entry // WIDTH % 4 * (DEPTH // 4) + entry // (4 * WIDTH) * WIDTH + entry % WIDTH


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


def registers(warps: int, programs: int) -> int:
    """Return how many registers a thread may take so that `programs` of `warps` each share a multiprocessor's 65536."""
    return min(255, 65536 // (32 * warps * programs) // 8 * 8)


def constants(epilogue: Epilogue, outer: int, size: int, warps: int, programs: int) -> dict[str, object]:
    """Return the constants and options of a kernel that stores `outer` channels of `size` bytes of each pixel."""
    columns = max(8, next_power_of_two(outer))
    return {
        "CHANNELS": outer, "OUT": columns, "GROUP": min(columns, 64 // size), "SCALED": epilogue.scale is not None,
        **epilogue.constants, "num_warps": warps, "maxnreg": registers(warps, programs), **DEPENDENT,
    }  # fmt: skip
