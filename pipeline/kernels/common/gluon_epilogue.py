"""The epilogue of a group of warps of a Gluon kernel: scale, shift, activation, and every way to write the sums.

All here work on y [out, pixels], as wgmma leaves it: a thread has pairs of neighbouring pixels in all its columns.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma

from pipeline.kernels.common.activation import larger
from pipeline.kernels.common.tma import store_box, view


@gluon.jit
def _channels_of(
    o0, PAIRED: gl.constexpr, OUT: gl.constexpr, layout: gl.constexpr, REPEATS: gl.constexpr = 1,
    SLICES: gl.constexpr = 1,
):  # fmt: skip
    """Return the channel in each row [OUT] of an accumulator; with REPEATS a tile's channels come so often.

    A thread's rows lie 8 apart. Where `PAIRED`, channel 2 i + j of each 16 is in row i + 8 j: a thread has neighbouring
    channels, and two bytes of fp8 are one conversion and one store. With 2 `SLICES` each 16 rows hold 8 of either.
    """
    row = gl.arange(0, OUT, layout=gl.SliceLayout(1, layout))
    if SLICES == 2:
        row = row // 16 * 8 + row % 8
    if REPEATS > 1:
        row = row % (OUT // REPEATS)
    return o0 + (row // 16 * 16 + row % 8 * 2 + row // 8 % 2 if PAIRED else row)


@gluon.jit
def load_channels(
    ends, o0, SCALED: gl.constexpr, PAIRED: gl.constexpr, OUT: gl.constexpr, layout: gl.constexpr,
    REPEATS: gl.constexpr = 1, SLICES: gl.constexpr = 1,
):  # fmt: skip
    """Scale and bias [OUT] of an accumulator's rows, loaded before the products: memory is hundreds of cycles away."""
    scale, bias, channels = ends
    channel = _channels_of(o0, PAIRED, OUT, layout, REPEATS, SLICES)
    inside = channel < channels
    shift = gl.load(bias + channel, mask=inside, other=0.0)
    factor = gl.load(scale + channel, mask=inside, other=0.0) if SCALED else shift
    return factor, shift


@gluon.jit
def load_slopes(
    slopes, channels, o0, PAIRED: gl.constexpr, OUT: gl.constexpr, layout: gl.constexpr, SLICES: gl.constexpr = 1
):  # fmt: skip
    """Return the activation's slopes of a tile's channels [OUT], as `load_channels` loads the others."""
    channel = _channels_of(o0, PAIRED, OUT, layout, 1, SLICES)
    return gl.load(slopes + channel, mask=channel < channels, other=0.0)


@gluon.jit
def activated(
    acc, factor, shift, SCALED: gl.constexpr, ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, slopes=None, residual=None
):  # fmt: skip
    """ACTIVATION(acc · factor[o] + shift[o] + residual) for acc and residual [out, pixels], in acc's order."""
    if SCALED:
        acc = acc * factor.expand_dims(1)
    acc = acc + shift.expand_dims(1)
    if residual is not None:
        acc = acc + residual
    return ACTIVATION(acc, SLOPE if slopes is None else slopes.expand_dims(1))


@gluon.jit
def in_order(y, PAIRED: gl.constexpr):
    """Y [out, pixels] of an accumulator in the order of the channels."""
    if PAIRED:
        OUT: gl.constexpr = y.shape[0]
        PIXELS: gl.constexpr = y.shape[1]
        y = y.reshape([OUT // 16, 2, 8, PIXELS]).permute((0, 2, 1, 3)).reshape([OUT, PIXELS])
    return y


@gluon.jit
def two_slices(y):
    """Of y [out, pixels] the 8 first and the 8 last of each 16 rows, each [out / 2, pixels]: both lie in one thread."""
    OUT: gl.constexpr = y.shape[0]
    PIXELS: gl.constexpr = y.shape[1]
    one, other = y.reshape([OUT // 16, 2, 8, PIXELS]).permute((0, 2, 3, 1)).split()
    return one.reshape([OUT // 2, PIXELS]), other.reshape([OUT // 2, PIXELS])


@gluon.jit
def halves_of(y):
    """Return the upper and the lower half of y's pixels, [out, pixels / 2]: staging all at once would cost a box."""
    OUT: gl.constexpr = y.shape[0]
    PIXELS: gl.constexpr = y.shape[1]
    return y.reshape([OUT, 2, PIXELS // 2]).permute((0, 2, 1)).split()


@gluon.jit
def _joined(upper, lower):
    """Join two halves [out, pixels / 2] into [out, pixels]; the inverse of `halves_of`."""
    OUT: gl.constexpr = upper.shape[0]
    PIXELS: gl.constexpr = upper.shape[1]
    return gl.join(upper, lower).permute((0, 2, 1)).reshape([OUT, 2 * PIXELS])


@gluon.jit
def _quarter(staging, number, dtype: gl.constexpr):
    """One of the buffers [pixels / 4, out] of `staging`, as values of this type."""
    PIXELS: gl.constexpr = staging.shape[1]
    OUT: gl.constexpr = staging.shape[2]
    layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([PIXELS, OUT], dtype)
    return view(staging.index(number), dtype, [PIXELS, OUT], layout)


@gluon.jit
def load_residual(acc, staging, scale, first, dtype: gl.constexpr, PAIRED: gl.constexpr):
    """Load the residual from four buffers from `first` on, times its scale, in the layout of acc [out, pixels]."""
    OUT: gl.constexpr = acc.shape[0]
    PIXELS: gl.constexpr = acc.shape[1]
    # The quarters of the accumulator say where each of their values lies; the values themselves aren't used.
    halves = halves_of(in_order(acc, PAIRED))
    like = halves_of(halves[0])[0]
    upper = _joined(
        _quarter(staging, first, dtype).permute((1, 0)).load(like.type.layout),
        _quarter(staging, first + 1, dtype).permute((1, 0)).load(like.type.layout),
    )
    lower = _joined(
        _quarter(staging, first + 2, dtype).permute((1, 0)).load(like.type.layout),
        _quarter(staging, first + 3, dtype).permute((1, 0)).load(like.type.layout),
    )
    held = _joined(upper, lower)
    if PAIRED:
        held = held.reshape([OUT // 16, 8, 2, PIXELS]).permute((0, 2, 1, 3)).reshape([OUT, PIXELS])
    return gl.convert_layout(held, acc.type.layout, assert_trivial=True).to(gl.float32) * scale


@gluon.jit
def stage(part, buffer, dtype: gl.constexpr):
    """Write a quarter of a tile into one of two buffers, once TMA has read what it held; fp8 saturates, NaN stays."""
    tma.store_wait(1)
    buffer.permute((1, 0)).store(part.to(dtype))
    fence_async_shared()


@gluon.jit
def write(
    y, boxes, staging, image, y0, x0, o0, first, BUFFERS: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr,
    OUT: gl.constexpr,
):  # fmt: skip
    """Y [out, pixels] to NHWC, a quarter at a time, by two or four BUFFERS from `first` on; TMA stores meanwhile."""
    halves = halves_of(y)
    for half in gl.static_range(2):
        quarters = halves_of(halves[half])
        for slot in gl.static_range(2):
            buffer = _quarter(staging, first + (2 * half + slot) % BUFFERS, boxes.dtype)
            stage(quarters[slot], buffer, boxes.dtype)
            box = view(buffer, boxes.dtype, [1, ROWS // 4, COLS, OUT], boxes.layout)
            store_box(boxes, [image, y0 + (2 * half + slot) * (ROWS // 4), x0, o0], box)


@gluon.jit
def write_pooled(
    y, boxes, staging, image, y0, x0, o0, first, ROWS: gl.constexpr, COLS: gl.constexpr, OUT: gl.constexpr
):  # fmt: skip
    """Write the 2×2 maxima of y [out, pixels]: all four pixels lie in one thread's registers, so none are exchanged."""
    left, right = y.reshape([OUT, ROWS * COLS // 2, 2]).split()
    across = larger(left, right).reshape([OUT, ROWS // 2, 2, COLS // 2]).permute((0, 1, 3, 2))
    upper, lower = across.split()
    # The second buffer: the next tile's first quarter waits for all stores but the last, which is this one.
    buffer = _quarter(staging, first + 1, boxes.dtype)
    tma.store_wait(0)
    buffer.permute((1, 0)).store(larger(upper, lower).reshape([OUT, ROWS * COLS // 4]).to(boxes.dtype))
    fence_async_shared()
    box = view(buffer, boxes.dtype, [1, ROWS // 2, COLS // 2, OUT], boxes.layout)
    store_box(boxes, [image, y0 // 2, x0 // 2, o0], box)


@gluon.jit
def write_logits(y, head, staging, image, y0, x0, COLS: gl.constexpr, CLASSES: gl.constexpr):
    """Write the logits of a 1×1 head: the product of y [out, pixels] in fp16, transposed, with at most 8 classes."""
    mixes, bias, logits, height, width = head
    PIXELS: gl.constexpr = y.shape[1] // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[gl.num_warps(), 1], instr_shape=[16, 8, 16]
    )
    label = gl.arange(0, 8, layout=gl.SliceLayout(0, layout)).expand_dims(0)
    pixel = gl.arange(0, PIXELS, layout=gl.SliceLayout(1, layout)).expand_dims(1)
    row, col = y0 + pixel // COLS, x0 + pixel % COLS
    plane = logits + (image * CLASSES + label).to(gl.int64) * height * width
    halves = halves_of(y)
    for half in gl.static_range(2):
        staging.permute((1, 0)).store(halves[half].to(gl.float16))
        fence_async_shared()
        logit = warpgroup_mma(staging, mixes.permute((1, 0)), gl.zeros([PIXELS, 8], gl.float32, layout))
        logit = logit + gl.load(bias + label, mask=label < CLASSES, other=0.0)
        at = row + half * (PIXELS // COLS)
        gl.store(plane + at * width + col, logit, mask=(at < height) & (col < width) & (label < CLASSES))


@gluon.jit
def _block_statistics(part, top, left, height, width, COLS: gl.constexpr):
    """Mean and squared deviations of part [out, pixels], a block at row `top` and column `left`, inside the image."""
    PIXELS: gl.constexpr = part.shape[1]
    if (top + PIXELS // COLS <= height) & (left + COLS <= width):
        mean = gl.sum(part, axis=1) * (1.0 / PIXELS)
        away = part - mean.expand_dims(1)
        squares = gl.sum(away * away, axis=1)
    else:
        pixel = gl.arange(0, PIXELS, layout=gl.SliceLayout(0, part.type.layout))
        inside = ((top + pixel // COLS < height) & (left + pixel % COLS < width)).expand_dims(0)
        seen = gl.minimum(height - top, PIXELS // COLS) * gl.minimum(width - left, COLS)
        mean = gl.sum(gl.where(inside, part, 0.0), axis=1) / gl.maximum(seen, 1).to(gl.float32)
        away = gl.where(inside, part - mean.expand_dims(1), 0.0)
        squares = gl.sum(away * away, axis=1)
    return mean, squares


@gluon.jit
def write_statistics(
    y, statistics, map_number, y0, x0, o0, height, width, channels,
    ROWS: gl.constexpr, COLS: gl.constexpr, PAIRED: gl.constexpr, REPEATS: gl.constexpr = 1,
):  # fmt: skip
    """Mean and squared deviations of the blocks of 8 × 16 pixels of y [out, pixels], to [maps, blocks, 2, channels].

    A map is an image or a phase of it; with `REPEATS` the rows hold a tile's channels in several, one after the other.
    """
    OUT: gl.constexpr = y.shape[0]
    down, across = (height + 7) // 8, (width + COLS - 1) // COLS
    halves = halves_of(y) if ROWS == 16 else (y,)
    layout: gl.constexpr = halves[0].type.layout
    for half in gl.static_range(ROWS // 8):
        top = y0 + 8 * half
        part = halves[half]
        mean, squares = _block_statistics(part, top, x0, height, width, COLS)
        channel = _channels_of(o0, PAIRED, OUT, layout, REPEATS)
        entry = (map_number * down + top // 8) * across + x0 // COLS
        at = statistics + entry.to(gl.int64) * 2 * channels + channel
        if REPEATS > 1:
            beyond = gl.arange(0, OUT, layout=gl.SliceLayout(1, layout)) // (OUT // REPEATS)
            at = at + beyond * (down * across * 2 * channels)
        inside = (channel < channels) & (top < height)
        gl.store(at, mean, mask=inside)
        gl.store(at + channels, squares, mask=inside)
