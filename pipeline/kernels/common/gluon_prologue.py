"""A prologue in Gluon: a box in shared memory is scaled, shifted and activated in place, once, before its taps are read.

The group of warps that multiplies does it a third of a box at a time, while its product of a tap is on its way: the
tensor cores have work for the time that a third takes.
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
def load_factors(before, image, c0, dtype: gl.constexpr, DEPTH: gl.constexpr):
    """Scale and shift [DEPTH] of an image's channels from c0 on, as `prepare` takes them; 0 beyond the last channel."""
    scale, shift, inner = before
    layout: gl.constexpr = _spread(dtype, DEPTH, gl.num_warps())
    channel = c0 + gl.arange(0, DEPTH, layout=gl.SliceLayout(0, layout))
    at = image * inner + channel
    return gl.load(scale + at, mask=channel < inner, other=0.0), gl.load(shift + at, mask=channel < inner, other=0.0)


@gluon.jit
def _prepared(x, factor, offset, top, left, size, border, COLS: gl.constexpr, BEFORE: gl.constexpr, SLOPE: gl.constexpr):
    """BEFORE(x · factor + offset) of x [pixels, DEPTH] in x's type, whose first pixel is at `top`, `left`.

    Where the box lies on the border of the image, what is outside becomes zero.
    """
    height, width = size
    y = BEFORE(x.to(gl.float32) * factor.expand_dims(0) + offset.expand_dims(0), SLOPE)
    if border:
        pixel = gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, x.type.layout))
        row, col = top + pixel // COLS, left + pixel % COLS
        inside = (row >= 0) & (row < height) & (col >= 0) & (col < width)
        y = gl.where(inside.expand_dims(1), y, 0.0)
    return y.to(x.dtype)


@gluon.jit
def prepare(
    THIRD: gl.constexpr, pixels, row, factors, top, left, size,
    ROWS: gl.constexpr, COLS: gl.constexpr, DEPTH: gl.constexpr, BEFORE: gl.constexpr, SLOPE: gl.constexpr,
):  # fmt: skip
    """A third of a box of ROWS + 2 rows, which begins at `row` of `pixels` and at `top`, `left` of the image.

    A box of 18 rows has thirds of 4 + 2 rows, one of 10 rows has 4, 4 and 2: powers of two, which is what tensors are.
    """
    factor, offset = factors
    height, width = size
    dtype: gl.constexpr = pixels.dtype
    layout: gl.constexpr = _spread(dtype, DEPTH, gl.num_warps())
    border = (top < 0) | (left < 0) | (top + ROWS + 2 > height) | (left + COLS > width)
    FIRST: gl.constexpr = 6 * THIRD if ROWS == 16 else 4 * THIRD
    MANY: gl.constexpr = 2 if ROWS == 8 and THIRD == 2 else 4
    some = view(pixels.index(row + FIRST), dtype, [MANY * COLS, DEPTH], pixels.layout)
    if ROWS == 16:
        rest = view(pixels.index(row + FIRST + 4), dtype, [2 * COLS, DEPTH], pixels.layout)
        x, z = some.load(layout), rest.load(layout)
        ready = _prepared(x, factor, offset, top + FIRST, left, size, border, COLS, BEFORE, SLOPE)
        ready_rest = _prepared(z, factor, offset, top + FIRST + 4, left, size, border, COLS, BEFORE, SLOPE)
        some.store(ready)
        rest.store(ready_rest)
    else:
        x = some.load(layout)
        some.store(_prepared(x, factor, offset, top + FIRST, left, size, border, COLS, BEFORE, SLOPE))
