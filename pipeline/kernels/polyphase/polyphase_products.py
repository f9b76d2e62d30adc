"""What a group of warps of `polyphase_gluon` multiplies with each box, and the border's corrections of its sums."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from pipeline.kernels.common.tma import view


@gluon.jit
def _product(acc, pixels, weights, slot, row, block, BOX: gl.constexpr, DEPTH: gl.constexpr):
    """Queue the product of 64 rows of weights, from a block on, and a slot's pixels, from a row of its BOX ones on.

    It waits for the product before it.
    """
    dtype: gl.constexpr = pixels.dtype
    seen = view(pixels.index(slot * BOX + row), dtype, [acc.shape[1], DEPTH], pixels.layout)
    taps = view(weights.index(block), dtype, [64, DEPTH], weights.layout)
    acc = warpgroup_mma(taps, seen.permute((1, 0)), acc, is_async=True)
    return warpgroup_mma_wait(1, deps=(acc,))


@gluon.jit
def small_products(
    acc, pixels, weights, slot, base, empty, started, GROUP: gl.constexpr,
    ROWS: gl.constexpr, DEPTH: gl.constexpr, STAGES: gl.constexpr, PITCH: gl.constexpr, SPARSE: gl.constexpr,
):  # fmt: skip
    """A group's products of the matrices from a block on with a box of the small map; the box before is given back.

    From one matrix to the next it is PITCH blocks.
    """
    FIRST: gl.constexpr = 1 if SPARSE and GROUP == 0 else 0
    for down in gl.static_range(FIRST, 2):
        acc = _product(acc, pixels, weights, slot, GROUP + down, base + (2 * GROUP + down) * PITCH, ROWS + 2, DEPTH)
        if down == FIRST:  # only this box's product is on its way: the one before is done with
            mbarrier.arrive(empty.index((slot + STAGES - 1) % STAGES), count=1, pred=started)
    return acc


@gluon.jit
def plane_products(
    acc, pixels, weights, slot, base, empty, started, plane: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr,
    DEPTH: gl.constexpr, STAGES: gl.constexpr, PITCH: gl.constexpr, STRIDED: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    """A group's products of the matrices from a block on with a box of the even or the odd rows, as above.

    Of the rows of its own parity a row phase reads one tap, of the others two; with a stride both groups read the odd
    rows twice.
    """
    ALONE: gl.constexpr = plane == (0 if STRIDED else GROUP)
    TOP: gl.constexpr = GROUP * (ROWS // 2) if SPLIT else 0
    ROW: gl.constexpr = TOP + (plane if ALONE and not STRIDED else 0)
    OWN: gl.constexpr = 0 if SPLIT else (1 + plane) * GROUP
    FIRST: gl.constexpr = OWN if STRIDED else (1 if ALONE else 0)
    acc = _product(acc, pixels, weights, slot, ROW, base + FIRST * PITCH, ROWS + 2, DEPTH)
    mbarrier.arrive(empty.index((slot + STAGES - 1) % STAGES), count=1, pred=started)
    if not ALONE:
        SECOND: gl.constexpr = OWN + 1 if STRIDED else 2
        acc = _product(acc, pixels, weights, slot, TOP + 1, base + SECOND * PITCH, ROWS + 2, DEPTH)
    return acc


@gluon.jit
def corrected(acc, ends, border, spot, shape, GROUP: gl.constexpr, SPREAD: gl.constexpr, PAIRED: gl.constexpr):
    """Acc [out, pixels] with the border's corrections: a phase has one row and one column at the image's border."""
    _, _, channels = ends
    y0, x0, phase, o0 = spot
    height, width = shape
    OUT: gl.constexpr = acc.shape[0]
    layout: gl.constexpr = acc.type.layout
    row = gl.arange(0, OUT, layout=gl.SliceLayout(1, layout))
    pixel = gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, layout))
    b = phase + row // (OUT // SPREAD)
    order = row % (OUT // SPREAD)
    channel = o0 + (order // 16 * 16 + order % 8 * 2 + order // 8 % 2 if PAIRED else order)
    inside = channel < channels
    by_row = gl.load(border + (6 * GROUP + 1) * channels + channel, mask=inside, other=0.0)
    by_column = gl.load(border + (3 + 2 * b) * channels + channel, mask=inside, other=0.0)
    by_both = gl.load(border + (6 * GROUP + 2 * b) * channels + channel, mask=inside, other=0.0)
    on_row = (y0 + pixel // 16 == GROUP * (height - 1)).expand_dims(0)
    on_column = (x0 + pixel % 16).expand_dims(0) == (b * (width - 1)).expand_dims(1)
    at_row = gl.where(on_column, by_both.expand_dims(1), by_row.expand_dims(1))
    elsewhere = gl.where(on_column, by_column.expand_dims(1), 0.0)
    return acc + gl.where(on_row, at_row, elsewhere)
