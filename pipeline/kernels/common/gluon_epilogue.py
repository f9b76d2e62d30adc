"""What a group of warps of a Gluon kernel does with its sums: scale, shift, activation, and every way to write them.

All here work on y [out, pixels], as wgmma leaves it: a thread has pairs of neighbouring pixels in all its columns.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma

from pipeline.kernels.common.activation import larger
from pipeline.kernels.common.tma import store_box, view


@gluon.jit
def load_channels(
    ends, o0, SCALED: gl.constexpr, PAIRED: gl.constexpr, OUT: gl.constexpr, layout: gl.constexpr,
    REPEATS: gl.constexpr = 1,
):  # fmt: skip
    """Scale and bias of a tile's channels [OUT], in the order of the accumulator's rows.

    Loaded before the products and used after them: the way to memory and back is several hundred cycles.

    A thread's rows lie 8 apart. Where `PAIRED`, the loading warp put channel 2 i + j of each 16 into row i + 8 j, so
    that a thread has neighbouring channels: two bytes of fp8 are then one conversion and one store. With `REPEATS` the
    rows hold a tile's channels so many times, one block after the other.
    """
    scale, bias, channels = ends
    row = gl.arange(0, OUT, layout=gl.SliceLayout(1, layout))
    if REPEATS > 1:
        row = row % (OUT // REPEATS)
    channel = o0 + (row // 16 * 16 + row % 8 * 2 + row // 8 % 2 if PAIRED else row)
    inside = channel < channels
    shift = gl.load(bias + channel, mask=inside, other=0.0)
    factor = gl.load(scale + channel, mask=inside, other=0.0) if SCALED else shift
    return factor, shift


@gluon.jit
def finish(
    acc, factor, shift,
    SCALED: gl.constexpr, ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, PAIRED: gl.constexpr,
):  # fmt: skip
    """ACTIVATION(acc · factor[o] + shift[o]) for acc [out, pixels], then in the order of the channels."""
    if SCALED:
        acc = acc * factor.expand_dims(1)
    acc = acc + shift.expand_dims(1)
    acc = ACTIVATION(acc, SLOPE)
    if PAIRED:
        OUT: gl.constexpr = acc.shape[0]
        PIXELS: gl.constexpr = acc.shape[1]
        acc = acc.reshape([OUT // 16, 2, 8, PIXELS]).permute((0, 2, 1, 3)).reshape([OUT, PIXELS])
    return acc


@gluon.jit
def halves_of(y):
    """The upper and the lower half of the pixels of y [out, pixels], each [out, pixels / 2].

    Staging all at once would cost the memory of a box.
    """
    OUT: gl.constexpr = y.shape[0]
    PIXELS: gl.constexpr = y.shape[1]
    return y.reshape([OUT, 2, PIXELS // 2]).permute((0, 2, 1)).split()


@gluon.jit
def stage(part, buffer, dtype: gl.constexpr):
    """A quarter of a tile [out, pixels / 4] into one of two buffers, once TMA has read what was in it before.

    The conversion to fp8 saturates by itself (cvt.satfinite) and keeps a NaN.
    """
    tma.store_wait(1)
    buffer.permute((1, 0)).store(part.to(dtype))
    fence_async_shared()


@gluon.jit
def write(
    y, boxes, staging, image, y0, x0, o0, GROUP: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr,
    OUT: gl.constexpr,
):  # fmt: skip
    """Y [out, pixels] to NHWC, a quarter of its rows at a time: while TMA stores one, the next is made."""
    halves = halves_of(y)
    for half in gl.static_range(2):
        quarters = halves_of(halves[half])
        for slot in gl.static_range(2):
            buffer = staging.index(2 * GROUP + slot)
            stage(quarters[slot], buffer, boxes.dtype)
            box = view(buffer, boxes.dtype, [1, ROWS // 4, COLS, OUT], boxes.layout)
            store_box(boxes, [image, y0 + (2 * half + slot) * (ROWS // 4), x0, o0], box)


@gluon.jit
def write_pooled(
    y, boxes, staging, image, y0, x0, o0, GROUP: gl.constexpr, ROWS: gl.constexpr, COLS: gl.constexpr,
    OUT: gl.constexpr,
):  # fmt: skip
    """The 2×2 maxima of y [out, pixels]: all four pixels lie in one thread's registers, so nothing is exchanged."""
    left, right = y.reshape([OUT, ROWS * COLS // 2, 2]).split()
    across = larger(left, right).reshape([OUT, ROWS // 2, 2, COLS // 2]).permute((0, 1, 3, 2))
    upper, lower = across.split()
    # The second buffer: the next tile's first quarter waits for all stores but the last, which is this one.
    buffer = staging.index(2 * GROUP + 1)
    tma.store_wait(0)
    buffer.permute((1, 0)).store(larger(upper, lower).reshape([OUT, ROWS * COLS // 4]).to(boxes.dtype))
    fence_async_shared()
    box = view(buffer, boxes.dtype, [1, ROWS // 2, COLS // 2, OUT], boxes.layout)
    store_box(boxes, [image, y0 // 2, x0 // 2, o0], box)


@gluon.jit
def write_logits(y, head, staging, image, y0, x0, COLS: gl.constexpr, CLASSES: gl.constexpr):
    """The 1×1 head: a product of y [out, pixels] in fp16, pixels in its rows now, with the classes; wgmma takes 8."""
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
