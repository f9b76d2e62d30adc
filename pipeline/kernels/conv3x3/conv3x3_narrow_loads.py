"""What `conv3x3_narrow` loads: weights and rows of pixels into shared memory, or rows straight into registers."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from pipeline.kernels.common.norm_on_load import normalised
from pipeline.kernels.common.quads import as_operand, channel_read, channel_written, row_layout, wait_for_all_warps
from pipeline.kernels.common.tma import view

# Triton 3.8 renamed it.
copy_to_shared = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
FLAT = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))  # pixel after pixel
BESIDE = gl.constexpr(8)  # pixels of a slot beyond a strip's own: two are read


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
    for chunk in gl.static_range(CHUNKS):
        here, taps = inner + chunk * DEPTH, ()
        for tap in gl.static_range(9):  # all are on their way before the first is stored
            source = weight + (tap * CHANNELS + outer) * IN + here
            taps = taps + (gl.load(source, mask=(outer < CHANNELS) & (here < IN), other=0.0),)  # type: ignore[assignment]
        for tap in gl.static_range(9):
            held.index(tap * CHUNKS + chunk).store(taps[tap])
    fence_async_shared()
    wait_for_all_warps()


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
    queue, slots, slot, row, place,
    CHUNK: gl.constexpr, AHEAD: gl.constexpr, SLOTS: gl.constexpr, CHUNKS: gl.constexpr,
    IN_WORDS: gl.constexpr, WORDS: gl.constexpr,
):  # fmt: skip
    """A chunk of a row's channels at three horizontal shifts, each [16 · warps, WORDS], and the queue after it.

    A later row is sent for: into the slot that the row before had, which every warp has read.
    """
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
    """A chunk of an input row's channels at three horizontal shifts, each [16 · warps, WORDS].

    What lies outside the image is read from its border: a load that may not happen has to wait for its zeros.
    """
    layout: gl.constexpr = row_layout(WORDS // 4, WORDS, gl.num_warps())
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
def slots_for_rows(SLOTS: gl.constexpr, CHUNKS: gl.constexpr, WORDS: gl.constexpr):
    """Shared memory for so many rows of a strip, a plane for each pixel of each chunk of its channels."""
    pixels: gl.constexpr = 16 * gl.num_warps() + BESIDE
    return gl.allocate_shared_memory(gl.int32, [SLOTS * CHUNKS * pixels, 1, WORDS], FLAT)


@gluon.jit
def _ask_for_row(
    held, slot, row, place, CHUNKS: gl.constexpr, IN_WORDS: gl.constexpr, WORDS: gl.constexpr
):  # fmt: skip
    """Ask for an input row's pixels and the one on either side of them; they come to a slot.

    What lies outside the image is read from its border.
    """
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
    for chunk in gl.static_range(CHUNKS):
        first = (slot * CHUNKS + chunk) * (PIXELS + BESIDE)
        own = view(held.index(first), gl.int32, [PIXELS, WORDS], FLAT)
        rest = view(held.index(first + PIXELS), gl.int32, [BESIDE, WORDS], FLAT)
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
    """What `_load_row` gives, from the slot to which the row has come."""
    PIXELS: gl.constexpr = 16 * gl.num_warps()
    layout: gl.constexpr = row_layout(WORDS // 4, WORDS, gl.num_warps())
    first = (slot * CHUNKS + CHUNK) * (PIXELS + BESIDE)
    parts = ()
    for shift in gl.static_range(3):
        seen = view(held.index(first + shift), gl.int32, [PIXELS, WORDS], FLAT)
        parts = parts + (seen.load(layout),)  # type: ignore[assignment]
    return parts


@gluon.jit
def _within_image(parts, row, x0, height, width, CHUNK: gl.constexpr, IN_WORDS: gl.constexpr, WORDS: gl.constexpr):
    """What `_load_row` loaded, 0 outside the image and beyond its channels.

    A pixel to the right of the image gives sums that nobody stores, so each shift has one border that matters.
    """
    layout: gl.constexpr = row_layout(WORDS // 4, WORDS, gl.num_warps())
    col = (x0 + gl.arange(0, 16 * gl.num_warps(), layout=gl.SliceLayout(1, layout))).expand_dims(1)
    word = CHUNK * WORDS + gl.arange(0, WORDS, layout=gl.SliceLayout(0, layout)).expand_dims(0)
    inside = (row >= 0) & (row < height) & (word < IN_WORDS)
    left = gl.where(inside & (col > 0), parts[0], 0)
    middle = gl.where(inside & (col >= 0), parts[1], 0)
    return left, middle, gl.where(inside & (col < width - 1), parts[2], 0)


@gluon.jit
def operands_of(
    parts, ends, row, x0, height, width,
    CHUNK: gl.constexpr, IN_WORDS: gl.constexpr, WORDS: gl.constexpr, NORM: gl.constexpr,
    sums: gl.constexpr, dtype: gl.constexpr,
):  # fmt: skip
    """What `_load_row` loaded, after a norm if there is one, as the first operands of products; 0 outside the image."""
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
    return as_operand(left, sums, dtype), as_operand(middle, sums, dtype), as_operand(right, sums, dtype)


@gluon.jit
def taps_of(held, DOWN: gl.constexpr, shift: gl.constexpr, CHUNK: gl.constexpr, CHUNKS: gl.constexpr):
    """The weights of a tap and a chunk of channels, as the second operand of a product."""
    return held.index((3 * DOWN + shift) * CHUNKS + CHUNK).permute((1, 0))
