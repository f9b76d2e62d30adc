"""The network's first convolution of `conv_first`, its windows gathered straight into the registers of products.

Pairs of a window's values neighbour each other in a row of the image, so a pair is one read, rounded to fp16 on the
spot; the L1 has the image's rows. With windows of 3×3, a stride of 1 and few channels `conv_first_rows` walks down a
strip: each warp alone reads a row of up to four channels once and keeps it for three output rows. Four columns fill a
product's depth, of which two neighbouring pixels need all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pipeline.kernels.common import quads, strips
from pipeline.kernels.common.epilogue import check_blocks
from pipeline.kernels.common.nhwc import multiprocessors
from pipeline.kernels.common.program import evenest, on_grid
from pipeline.kernels.conv_first.conv_first_triton import Operands

MOST_OUT = 128  # channels whose sums fit in the registers beside a row's windows
MOST_IN_ROWS, MOST_OUT_ROWS = 4, 64  # channels whose row of a window one product has, and those whose weights fit
BEST_BY_ROWS = 32  # channels out: up to as many, no tile of `conv_first_gluon` was faster in any measured layer
SPAN = gl.constexpr(4)  # columns of a packed window of 3: it begins at an even one, and the first is zero


@dataclass(frozen=True)
class Tile:
    """A cut of the work: strips of `rows` × 16 · `warps` output pixels, `programs` on each multiprocessor."""

    kernel: ClassVar[str] = "conv_first_gluon"
    rows: int
    warps: int = 4
    programs: int = 4


@dataclass(frozen=True)
class RowsTile:
    """A cut of the work: strips of `rows` × 16 · `warps` units of `fold` pixels, `programs` on a multiprocessor."""

    kernel: ClassVar[str] = "conv_first_rows"
    rows: int  # best two less than a multiple of 3, as the three input rows in work take turns
    programs: int
    ahead: int  # rows of the image on their way while one is multiplied
    fold: int = 1  # neighbouring pixels that are one row of the product, 1 or 2
    warps: int = 4


@gluon.jit
def _hold_weights(
    weight, held, CHANNELS: gl.constexpr, ENTRIES: gl.constexpr, STEPS: gl.constexpr, OUT: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    """Weight [ENTRIES, channels] into shared memory [STEPS, OUT, 16], its channels as `common/quads.py` has them."""
    spread: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [gl.num_warps(), 1], [1, 0])
    outer = quads.channel_written(gl.arange(0, OUT, layout=gl.SliceLayout(1, spread)), GROUP).expand_dims(1)
    entry = gl.arange(0, 16, layout=gl.SliceLayout(0, spread)).expand_dims(0)
    for step in range(STEPS):
        at = step * 16 + entry
        values = gl.load(weight + at * CHANNELS + outer, mask=(at < ENTRIES) & (outer < CHANNELS), other=0.0)
        held.index(step).store(values)
    fence_async_shared()


@gluon.jit
def _load_windows(
    image, y, x0, height, width, z, slices, DEEP: gl.constexpr, IN: gl.constexpr, WINDOW: gl.constexpr,
    SPAN: gl.constexpr, STRIDE: gl.constexpr, STEPS: gl.constexpr,
):  # fmt: skip
    """Load the windows of a row of output pixels in fp16: [16 · warps, 16] for each 16 of their entries."""
    layout: gl.constexpr = quads.row_layout(2, 16, gl.num_warps())
    pixel = gl.arange(0, 16 * gl.num_warps(), layout=gl.SliceLayout(1, layout))
    left: gl.constexpr = WINDOW // 2 + WINDOW // 2 % 2
    parts = ()
    for step in gl.static_range(STEPS):
        entry = step * 16 + gl.arange(0, 16, layout=gl.SliceLayout(0, layout))
        line = entry // SPAN
        row = y * STRIDE + line % WINDOW - WINDOW // 2
        col = ((x0 + pixel) * STRIDE - left).expand_dims(1) + (entry % SPAN).expand_dims(0)
        seen = ((row >= 0) & (row < height) & (line < IN * WINDOW)).expand_dims(0) & (col >= 0) & (col < width)
        plane = line // WINDOW
        if DEEP == 3:
            near = z + plane // (IN // DEEP) - 1
            seen = seen & ((near >= 0) & (near < slices)).expand_dims(0)
            plane = plane % (IN // DEEP) * slices + near
        source = ((plane * height + row) * width).expand_dims(0) + col
        parts = parts + (gl.load(image + source, mask=seen, other=0.0).to(gl.float16),)  # type: ignore[assignment]
    return parts


@gluon.jit(do_not_specialize=["rows", "tiles_y", "tiles_x", "tiles", "slices"])
def _conv_first_gluon(
    image, weight, out, scale, bias, statistics, out_image_stride, out_row_stride, out_unit, height, width, out_height,
    out_width, rows, tiles_y, tiles_x, tiles, slices, DEEP: gl.constexpr, IN: gl.constexpr, CHANNELS: gl.constexpr,
    WINDOW: gl.constexpr, SPAN: gl.constexpr, STRIDE: gl.constexpr, STEPS: gl.constexpr, OUT: gl.constexpr,
    GROUP: gl.constexpr, ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Read image [N, IN, H, W], or volumes as `conv_first_triton`, and weight; write out [N, H', W', channels]."""
    sums: gl.constexpr = quads.sums_layout(OUT, gl.float16, num_warps)
    COLS: gl.constexpr = 16 * num_warps
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([OUT, 16], gl.float16)
    held = gl.allocate_shared_memory(gl.float16, [STEPS, OUT, 16], shared)
    gdc_launch_dependents()
    gdc_wait()
    _hold_weights(weight, held, CHANNELS, IN * WINDOW * SPAN, STEPS, OUT, GROUP)
    ends = quads.load_ends(scale, bias, CHANNELS, SCALED, GROUP, OUT, sums)
    operand: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        number = tile // tiles_x // tiles_y
        y0, x0 = tile // tiles_x % tiles_y * rows, tile % tiles_x * COLS
        source = image + (number // slices).to(gl.int64) * (IN // DEEP) * slices * height * width
        target = out + number.to(gl.int64) * out_image_stride
        mean, squares = quads.nothing_counted(COLS, OUT, sums)
        counted = number.to(gl.int64) * ((out_height + 7) // 8) * ((out_width + 15) // 16) * (2 * CHANNELS)
        for y in range(y0, gl.minimum(y0 + rows, out_height)):
            parts = _load_windows(
                source, y, x0, height, width, number % slices, slices, DEEP, IN, WINDOW, SPAN, STRIDE, STEPS
            )
            acc = gl.zeros([COLS, OUT], gl.float32, sums)
            for step in gl.static_range(STEPS):
                window = gl.convert_layout(parts[step], operand, assert_trivial=True)
                acc = warpgroup_mma(window, held.index(step).permute((1, 0)), acc, use_acc=step > 0, is_async=True)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            result = quads.finish_rows(acc, ends, SCALED, ACTIVATION, SLOPE)
            line = target + y.to(gl.int64) * out_row_stride  # type: ignore[attr-defined]
            quads.store_row(result, line, x0, out_unit, y < out_height, out_width, CHANNELS, GROUP)
            if statistics is not None:
                mean, squares = quads.count_row(
                    result, mean, squares, statistics + counted, y, x0, y < out_height, out_height, out_width,
                    CHANNELS, GROUP,
                )  # fmt: skip


@gluon.jit
def _taps(weight, IN: gl.constexpr, CHANNELS: gl.constexpr, GROUP: gl.constexpr, FOLD: gl.constexpr, like):
    """Load the window's rows of weight [IN, 3, SPAN, channels], each a product's second operand, [16, OUT]."""
    EACH: gl.constexpr = CHANNELS // FOLD
    layout: gl.constexpr = gl.DotOperandLayout(1, like.type.layout, 2)
    entry = gl.arange(0, 16, layout=gl.SliceLayout(1, layout)).expand_dims(1)
    column = gl.arange(0, like.shape[1], layout=gl.SliceLayout(0, layout)).expand_dims(0)
    outer = quads.channel_written(column, GROUP)
    plane = entry // 8 * 2 + entry % 2
    across = entry % 8 // 2 + 1 - outer // EACH
    known = (plane < IN) & (across > 0) & (across < SPAN) & (outer < CHANNELS)
    taps = ()
    for down in gl.static_range(3):
        at = ((plane * 3 + down) * SPAN + across) * EACH + outer % EACH
        taps = taps + (gl.load(weight + at, mask=known, other=0.0),)  # type: ignore[assignment]
    return taps


@gluon.jit
def _load_row(place, row, DEEP: gl.constexpr, IN: gl.constexpr, FOLD: gl.constexpr):
    """Load a row of each plane of the image at four columns for each unit, [16 · warps, 4]; outside it is 0."""
    image, x0, z, slices, bottom, height, width = place
    layout: gl.constexpr = quads.row_layout(1, 4, gl.num_warps())
    unit = gl.arange(0, 16 * gl.num_warps(), layout=gl.SliceLayout(1, layout)).expand_dims(1)
    column = gl.arange(0, 4, layout=gl.SliceLayout(0, layout)).expand_dims(0)
    col = FOLD * (x0 + unit) - 1 + column
    seen = (col >= 0) & (col < width) & (column < FOLD + 2) & (row >= 0) & (row < bottom)
    parts = ()
    for plane in gl.static_range(IN):
        number, known = plane, seen
        if DEEP == 3:
            near = z + plane // (IN // DEEP) - 1
            number, known = plane % (IN // DEEP) * slices + near, seen & (near >= 0) & (near < slices)
        parts = parts + (gl.load(image + (number * height + row) * width + col, mask=known, other=0.0),)  # type: ignore[assignment]
    return parts


@gluon.jit
def _operand_of(parts, sums: gl.constexpr):
    """Return the loaded planes of a row, in fp16, as the first operand of a product, [16 · warps, 16]."""
    nothing = gl.zeros_like(parts[0])
    planes = parts + (nothing, nothing, nothing)
    low, high = strips.pairs(planes[0], planes[1]), strips.pairs(planes[2], planes[3])
    return quads.as_operand(gl.join(low, high).reshape([low.shape[0], 8]), sums, gl.float16)


@gluon.jit(do_not_specialize=["rows", "tiles_y", "tiles_x", "tiles", "slices"])
def _conv_first_rows(
    image, weight, out, scale, bias, statistics, out_image_stride, out_row_stride, out_unit, height, width, rows,
    tiles_y, tiles_x, tiles, slices, DEEP: gl.constexpr, IN: gl.constexpr, CHANNELS: gl.constexpr, OUT: gl.constexpr,
    GROUP: gl.constexpr, AHEAD: gl.constexpr, FOLD: gl.constexpr, ACTIVATION: gl.constexpr, SLOPE: gl.constexpr,
    SCALED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Read image [N, IN, H, W], or volumes, and weight [IN, 3, SPAN, CHANNELS]; write out [N, H, W, CHANNELS]."""
    sums: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [num_warps, 1], [16, 8])
    UNITS: gl.constexpr = 16 * num_warps
    gdc_launch_dependents()
    gdc_wait()
    nothing = gl.zeros([UNITS, OUT], gl.float32, sums)
    taps = _taps(weight, IN, CHANNELS, GROUP, FOLD, nothing)
    ends = quads.load_ends(scale, bias, CHANNELS, SCALED, GROUP, OUT, sums, FOLD)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        number = tile // tiles_x // tiles_y
        y0, x0 = tile // tiles_x % tiles_y * rows, tile % tiles_x * UNITS
        source = image + (number // slices).to(gl.int64) * (IN // DEEP) * slices * height * width
        place = (source, x0, number % slices, slices, gl.minimum(y0 + rows + 1, height), height, width)
        target = out + number.to(gl.int64) * out_image_stride
        counted = number.to(gl.int64) * ((height + 7) // 8) * ((width + 15) // 16) * (2 * CHANNELS)
        queue = ()
        for step in gl.static_range(AHEAD):
            queue = queue + (_load_row(place, y0 - 1 + step, DEEP, IN, FOLD),)  # type: ignore[assignment]
        above = gl.zeros([UNITS, 16], gl.float16, gl.DotOperandLayout(0, sums, 2))
        here = above
        mean, squares = quads.nothing_counted(UNITS, OUT, sums)
        for turn in range(0, gl.minimum(rows, height - y0) + 2, 3):
            for step in gl.static_range(3):
                row = y0 - 1 + turn + step
                queue = queue + (_load_row(place, row + AHEAD, DEEP, IN, FOLD),)  # type: ignore[assignment]
                below = _operand_of(queue[0], sums)  # type: ignore[misc]
                queue = queue[1:]
                acc = mma_v2(below, taps[2], mma_v2(here, taps[1], mma_v2(above, taps[0], nothing)))
                above, here = here, below
                y = quads.finish_rows(acc, ends, SCALED, ACTIVATION, SLOPE)
                inside = (row > y0) & (row <= gl.minimum(y0 + rows, height))
                line = target + (row - 1).to(gl.int64) * out_row_stride
                quads.store_row(y, line, x0, out_unit, inside, width, CHANNELS, GROUP, FOLD=FOLD)
                if statistics is not None:
                    mean, squares = quads.count_row(
                        y, mean, squares, statistics + counted, row - 1, x0, inside, height, width, CHANNELS, GROUP
                    )


def launch(operands: Operands, tile: Tile | RowsTile) -> None:
    """Queue the convolution of a checked image; raise ValueError where the tile's kernel doesn't take such a layer."""
    image, weight, epilogue, out, statistics = operands
    if isinstance(tile, RowsTile) and not suits_rows(operands):
        raise ValueError(f"rows take 3×3 windows of stride 1, at most {MOST_IN_ROWS} channels in, {MOST_OUT_ROWS} out")
    check_blocks(epilogue, tile.rows, 16 * tile.warps)
    fold = tile.fold if isinstance(tile, RowsTile) else 1
    if fold > 1 and statistics is not None:
        raise ValueError("statistics are of single pixels, and fold must be 1")
    size, (batch, out_height, out_width, outer) = image.shape[-2:], out.shape
    inner, window, span, _ = weight.shape
    tiles_y, tiles_x = -(-out_height // tile.rows), -(-out_width // (16 * tile.warps * fold))
    tiles = batch * tiles_y * tiles_x
    ends = (
        image, weight, out, epilogue.factors, epilogue.bias, statistics,
        out.stride(0), out.stride(1), out.stride(2) * out.element_size() // 16,
    )  # fmt: skip
    geometry = (tile.rows, tiles_y, tiles_x, tiles, operands.slices)
    constants = quads.constants(epilogue, outer * fold, out.element_size(), tile.warps, tile.programs)
    constants |= {"DEEP": operands.deep, "IN": inner}
    programs = min(tiles, multiprocessors(image.device) * tile.programs)
    if isinstance(tile, RowsTile):
        on_grid(_conv_first_rows, programs)(*ends, *size, *geometry, AHEAD=tile.ahead, FOLD=fold, **constants)
    else:
        how = {"WINDOW": window, "SPAN": span, "STRIDE": operands.stride, "STEPS": -(-inner * window * span // 16)}
        on_grid(_conv_first_gluon, programs)(*ends, *size, out_height, out_width, *geometry, **how, **constants)


def candidates(weight: Tensor, *, statistics: bool) -> Iterator[Tile]:
    """Yield tiles worth measuring for a packed weight [in, k, span, out], likeliest first."""
    outer, entries = weight.shape[-1], weight[..., 0].numel()
    if outer > 64:
        several = [2]
    elif entries > 64:
        several = [3, 4]
    else:
        several = [4, 5] if outer > 32 or statistics else [6, 4]
    for programs in several:
        for rows in (8, 16) if statistics else (4, 2):
            yield Tile(rows, 4, programs)


def suits_rows(operands: Operands) -> bool:
    """Return whether `conv_first_rows` takes the layer: a row of its window, all channels, fits in one product."""
    inner, window, _, outer = operands.weight.shape
    return window == 3 and operands.stride == 1 and inner <= MOST_IN_ROWS and outer <= MOST_OUT_ROWS


def row_candidates(operands: Operands) -> Iterator[RowsTile]:
    """Yield tiles worth measuring for a layer that `suits_rows`, likeliest first."""
    batch, height, width, outer = operands.out.shape
    few = ((2, 3, 1), (3, 2, 1)) if outer > 32 else ((4, 2, 1), (4, 3, 1))
    if outer <= 16 and not operands.epilogue.statistics:
        few = ((4, 3, 2), (4, 3, 1))
    for programs, ahead, fold in few[:1] if operands.epilogue.statistics else few:
        at_once = multiprocessors(operands.image.device) * programs
        for rows in evenest((batch, height, -(-width // fold)), at_once, (64, 16, 8)):
            yield RowsTile(rows, programs, ahead, fold)
