"""What `conv3x3_narrow` loads: weights into shared memory, and rows of pixels into registers."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from pipeline.kernels.common.norm_on_load import normalised
from pipeline.kernels.common.quads import as_operand, channel_read, channel_written, row_layout, wait_for_all_warps


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
    outer = channel_written(column, GROUP).expand_dims(1)
    inner = channel_read(entry, DEPTH, WIDTH).expand_dims(0)
    for tap in range(9):
        for chunk in gl.static_range(CHUNKS):
            here = inner + chunk * DEPTH
            source = weight + (tap * CHANNELS + outer) * IN + here
            values = gl.load(source, mask=(outer < CHANNELS) & (here < IN), other=0.0)
            held.index(tap * CHUNKS + chunk).store(values)
    fence_async_shared()
    wait_for_all_warps()


@gluon.jit
def load_row(
    image, row, x0, strides, height, width, CHUNK: gl.constexpr, IN_WORDS: gl.constexpr, WORDS: gl.constexpr
):  # fmt: skip
    """A chunk of an input row's channels at three horizontal shifts, each [16 · warps, WORDS].

    What lies outside the image is read from its border: a load that may not happen has to wait for its zeros.
    """
    layout: gl.constexpr = row_layout(WORDS // 4, WORDS, gl.num_warps())
    pixel = gl.arange(0, 16 * gl.num_warps(), layout=gl.SliceLayout(1, layout))
    word = CHUNK * WORDS + gl.arange(0, WORDS, layout=gl.SliceLayout(0, layout)).expand_dims(0)
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
def operands_of(
    parts, ends, row, x0, height, width,
    CHUNK: gl.constexpr, IN_WORDS: gl.constexpr, WORDS: gl.constexpr, NORM: gl.constexpr,
    sums: gl.constexpr, dtype: gl.constexpr,
):  # fmt: skip
    """What `load_row` loaded as the first operands of products, 0 outside the image and beyond its channels.

    A pixel to the right of the image gives sums that nobody stores, so each shift has one border that matters.
    """
    if NORM is not None:
        parts = (normalised(parts[0], ends, NORM), normalised(parts[1], ends, NORM), normalised(parts[2], ends, NORM))
    layout: gl.constexpr = row_layout(WORDS // 4, WORDS, gl.num_warps())
    col = (x0 + gl.arange(0, 16 * gl.num_warps(), layout=gl.SliceLayout(1, layout))).expand_dims(1)
    word = CHUNK * WORDS + gl.arange(0, WORDS, layout=gl.SliceLayout(0, layout)).expand_dims(0)
    inside = (row >= 0) & (row < height) & (word < IN_WORDS)
    left = as_operand(parts[0], inside & (col > 0), sums, dtype)
    middle = as_operand(parts[1], inside & (col >= 0), sums, dtype)
    return left, middle, as_operand(parts[2], inside & (col < width - 1), sums, dtype)


@gluon.jit
def taps_of(held, DOWN: gl.constexpr, shift: gl.constexpr, CHUNK: gl.constexpr, CHUNKS: gl.constexpr):
    """The weights of a tap and a chunk of channels, as the second operand of a product."""
    return held.index((3 * DOWN + shift) * CHUNKS + CHUNK).permute((1, 0))
