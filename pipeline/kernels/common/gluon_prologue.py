"""A prologue in Gluon: a box in shared memory is scaled, shifted and activated in place, before its taps are read.

The group of warps that multiplies does it a third of a box at a time, while its product of a tap is on its way: the
tensor cores have work for the time that a third takes. That time is short, so activations that are as good in fp16 are
computed in it, two values an instruction; the others in fp32.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from pipeline.kernels.common.tma import view


@gluon.constexpr_function
def _spread(dtype, depth, warps):
    """A layout of [pixels, depth] in which a thread has 16 bytes of neighbouring channels, the same of every pixel."""
    values = 128 // dtype.primitive_bitwidth
    return gl.BlockedLayout([1, values], [32 * values // depth, depth // values], [warps, 1], [1, 0])


@gluon.jit
def load_factors(before, image, c0, dtype: gl.constexpr, DEPTH: gl.constexpr, HALVES: gl.constexpr):
    """Center, scale and rest [DEPTH] of an image's channels from c0 on, as `prepare` takes them; 0 beyond the last.

    x · scale + shift is (x - center) · scale + rest, for any center. With the one that makes it zero, rounded, all that
    is computed in fp16 is small where the result is, however far from zero the values lie.
    """
    scale, shift, inner = before
    layout: gl.constexpr = _spread(dtype, DEPTH, gl.num_warps())
    channel = c0 + gl.arange(0, DEPTH, layout=gl.SliceLayout(0, layout))
    at = image * inner + channel
    factor = gl.load(scale + at, mask=channel < inner, other=0.0)
    offset = gl.load(shift + at, mask=channel < inner, other=0.0)
    center = offset
    if HALVES:
        zero = -offset / factor
        center = gl.where(gl.abs(zero) < 16384.0, zero, 0.0).to(gl.float16)
        offset = (offset + center.to(gl.float32) * factor).to(gl.float16)
        factor = factor.to(gl.float16)
    return center, factor, offset


@gluon.jit
def _prepare_rows(
    pixels, row, factors, top, left, size, border,
    COUNT: gl.constexpr, COLS: gl.constexpr, DEPTH: gl.constexpr, BEFORE: gl.constexpr, SLOPE: gl.constexpr,
    HALVES: gl.constexpr,
):  # fmt: skip
    """BEFORE(x · scale + shift), in place, of the COUNT rows from `row` of `pixels` on.

    They lie at `top`, `left` of the image; where the box lies on its border, what is outside becomes zero.
    """
    center, factor, rest = factors
    height, width = size
    layout: gl.constexpr = _spread(pixels.dtype, DEPTH, gl.num_warps())
    held = view(pixels.index(row), pixels.dtype, [COUNT * COLS, DEPTH], pixels.layout)
    x = held.load(layout).to(gl.float16 if HALVES else gl.float32)
    if HALVES:
        x = x - center.expand_dims(0)
    y = BEFORE(gl.fma(x, factor.expand_dims(0), rest.expand_dims(0)), SLOPE)
    if border:
        pixel = gl.arange(0, COUNT * COLS, layout=gl.SliceLayout(1, layout))
        y_at, x_at = top + pixel // COLS, left + pixel % COLS
        inside = (y_at >= 0) & (y_at < height) & (x_at >= 0) & (x_at < width)
        y = gl.where(inside.expand_dims(1), y, 0.0)
    held.store(y.to(pixels.dtype))


@gluon.jit
def prepare(
    THIRD: gl.constexpr, pixels, row, factors, top, left, size,
    ROWS: gl.constexpr, COLS: gl.constexpr, DEPTH: gl.constexpr, BEFORE: gl.constexpr, SLOPE: gl.constexpr,
    HALVES: gl.constexpr,
):  # fmt: skip
    """A third of a box of ROWS + 2 rows, which begins at `row` of `pixels` and at `top`, `left` of the image.

    A box of 18 rows has thirds of 4 + 2 rows, one of 10 rows has 4, 4 and 2: powers of two, which is what tensors are.
    """
    height, width = size
    border = (top < 0) | (left < 0) | (top + ROWS + 2 > height) | (left + COLS > width)
    # In fp32, two rows of a wide box are as many values as a thread has registers for beside its sums.
    STEP: gl.constexpr = 2 if DEPTH > 64 and not HALVES else 4
    FIRST: gl.constexpr = 6 * THIRD if ROWS == 16 else 4 * THIRD
    COUNT: gl.constexpr = 6 if ROWS == 16 else 2 if THIRD == 2 else 4
    for start in gl.static_range(0, COUNT, STEP):
        _prepare_rows(
            pixels, row + FIRST + start, factors, top + FIRST + start, left, size, border,
            STEP if start + STEP <= COUNT else COUNT - start, COLS, DEPTH, BEFORE, SLOPE, HALVES,
        )  # fmt: skip
