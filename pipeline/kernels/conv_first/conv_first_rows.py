"""The network's first 3×3 convolution of `conv_first`, where a row of the image is gathered once for three output rows.

The idea: the windows of `conv_first_gluon` have nine values of each channel, three rows of three, and what a program
takes its time for is to gather and round them. Here a product has one row of the windows of up to four channels,
4 columns of each: 16 values, which are all of its inner dimension. A program walks down a strip, as `conv3x3_narrow`
does: a row's values go to the output rows above, here and below by three products. That is a third of the reads, and
what is on its way for a row takes 8 registers a thread, so that rows may be under way long before they are multiplied.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from pipeline.kernels.common.dependent_launch import DEPENDENT, let_the_next_begin, wait_for_those_before
from pipeline.kernels.common.epilogue import check_blocks
from pipeline.kernels.common.nhwc import multiprocessors, next_power_of_two
from pipeline.kernels.common.program import evenest, on_grid
from pipeline.kernels.common.quads import (
    channel_written,
    count_row,
    finish_rows,
    load_ends,
    nothing_counted,
    registers,
    row_layout,
    store_row,
    sums_layout,
    wait_for_all_warps,
)
from pipeline.kernels.conv_first.conv_first_operands import Operands

MOST_IN, MOST_OUT = 4, 64  # channels whose row of a window one product has, and those whose three sums fit
SPAN = gl.constexpr(4)  # columns of a packed window of 3: it begins at an even one, and the first is zero


@dataclass(frozen=True)
class Tile:
    """A cut of the work: strips of `rows` × 64 output pixels, `programs` of them on each multiprocessor.

    Attributes:
        rows: of a strip; two less than a multiple of 3, as the three output rows in work take turns.
        programs: on each multiprocessor.
        ahead: how many rows of the image are on their way while one is multiplied.
    """

    rows: int
    programs: int
    ahead: int


@gluon.jit
def _hold_rows(
    weight, held, IN: gl.constexpr, CHANNELS: gl.constexpr, OUT: gl.constexpr, GROUP: gl.constexpr
):  # fmt: skip
    """Weight [IN, 3, SPAN, CHANNELS] into shared memory [3, OUT, 16], its channels as `common/quads.py` has them."""
    spread: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [gl.num_warps(), 1], [1, 0])
    outer = channel_written(gl.arange(0, OUT, layout=gl.SliceLayout(1, spread)), GROUP).expand_dims(1)
    entry = gl.arange(0, 16, layout=gl.SliceLayout(0, spread)).expand_dims(0)
    for down in gl.static_range(3):
        at = (entry // SPAN * 3 + down) * SPAN + entry % SPAN
        values = gl.load(weight + at * CHANNELS + outer, mask=(entry < IN * SPAN) & (outer < CHANNELS), other=0.0)
        held.index(down).store(values)
    fence_async_shared()
    wait_for_all_warps()


@gluon.jit
def _columns(x0):
    """Of each pixel's entries, in `row_layout`: the columns [16 · warps, 16] of the image and the planes [1, 16]."""
    layout: gl.constexpr = row_layout(2, 16, gl.num_warps())
    pixel = gl.arange(0, 16 * gl.num_warps(), layout=gl.SliceLayout(1, layout)).expand_dims(1)
    entry = gl.arange(0, 16, layout=gl.SliceLayout(0, layout)).expand_dims(0)
    return x0 - SPAN // 2 + pixel + entry % SPAN, entry // SPAN


@gluon.jit
def _load_row(place, row, DEEP: gl.constexpr, IN: gl.constexpr):
    """Load a row of the image at the entries of each pixel [16 · warps, 16]; outside is read from the border."""
    image, x0, z, slices, height, width = place
    col, plane = _columns(x0)
    plane = gl.minimum(plane, IN - 1)
    if DEEP == 3:
        near = gl.minimum(gl.maximum(z + plane // (IN // DEEP) - 1, 0), slices - 1)
        plane = plane % (IN // DEEP) * slices + near
    line = gl.minimum(gl.maximum(row, 0), height - 1)
    return gl.load(image + (plane * height + line) * width + gl.minimum(gl.maximum(col, 0), width - 1))


@gluon.jit
def _operand_of(values, place, row, DEEP: gl.constexpr, IN: gl.constexpr, sums: gl.constexpr):
    """Return the loaded row as the first operand of a product, with 0 outside the image and the window."""
    _, x0, z, slices, height, width = place
    col, plane = _columns(x0)
    layout: gl.constexpr = row_layout(2, 16, gl.num_warps())
    entry = gl.arange(0, 16, layout=gl.SliceLayout(0, layout)).expand_dims(0)
    seen = (row >= 0) & (row < height) & (plane < IN) & (entry % SPAN > 0) & (col >= 0) & (col < width)
    if DEEP == 3:
        near = z + plane // (IN // DEEP) - 1
        seen = seen & (near >= 0) & (near < slices)
    half = gl.where(seen, values, 0.0).to(gl.float16)
    return gl.convert_layout(half, gl.DotOperandLayout(0, sums, 2), assert_trivial=True)


@gluon.jit(do_not_specialize=["rows", "tiles_y", "tiles_x", "tiles", "slices"])
def _conv_first_rows(
    image, weight, out, scale, bias, statistics, out_image_stride, out_row_stride, out_unit,
    height, width, rows, tiles_y, tiles_x, tiles, slices,
    DEEP: gl.constexpr, IN: gl.constexpr, CHANNELS: gl.constexpr, OUT: gl.constexpr, GROUP: gl.constexpr,
    AHEAD: gl.constexpr,
    ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Read image [N, IN, H, W] fp32 and weight [IN, 3, SPAN, CHANNELS] fp16; write out [N, H, W, CHANNELS].

    With DEEP = 3 the image is volumes [N / slices, IN / 3, slices, H, W].
    """
    sums: gl.constexpr = sums_layout(OUT, gl.float16, num_warps)
    COLS: gl.constexpr = 16 * num_warps
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([OUT, 16], gl.float16)
    held = gl.allocate_shared_memory(gl.float16, [3, OUT, 16], shared)
    let_the_next_begin()
    wait_for_those_before()
    _hold_rows(weight, held, IN, CHANNELS, OUT, GROUP)
    ends = load_ends(scale, bias, CHANNELS, SCALED, GROUP, OUT, sums)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        number = tile // tiles_x // tiles_y
        y0, x0 = tile // tiles_x % tiles_y * rows, tile % tiles_x * COLS
        source = image + (number // slices).to(gl.int64) * (IN // DEEP) * slices * height * width
        place = (source, x0, number % slices, slices, height, width)
        target = out + number.to(gl.int64) * out_image_stride
        counted = number.to(gl.int64) * ((height + 7) // 8) * ((width + 15) // 16) * (2 * CHANNELS)
        queue = ()
        for step in gl.static_range(AHEAD):
            queue = queue + (_load_row(place, y0 - 1 + step, DEEP, IN),)  # type: ignore[assignment]
        above = gl.zeros([COLS, OUT], gl.float32, sums)
        here = gl.zeros([COLS, OUT], gl.float32, sums)
        mean, squares = nothing_counted(COLS, OUT, sums)
        for turn in range(0, gl.minimum(rows, height - y0) + 2, 3):
            for step in gl.static_range(3):
                row = y0 - 1 + turn + step
                queue = queue + (_load_row(place, row + AHEAD, DEEP, IN),)  # type: ignore[assignment]
                seen = _operand_of(queue[0], place, row, DEEP, IN, sums)  # type: ignore[misc]
                queue = queue[1:]
                above = warpgroup_mma(seen, held.index(2).permute((1, 0)), above, is_async=True)
                here = warpgroup_mma(seen, held.index(1).permute((1, 0)), here, is_async=True)
                below = gl.zeros([COLS, OUT], gl.float32, sums)
                below = warpgroup_mma(seen, held.index(0).permute((1, 0)), below, use_acc=False, is_async=True)
                above, here, below = warpgroup_mma_wait(0, deps=(above, here, below))
                y = finish_rows(above, ends, SCALED, ACTIVATION, SLOPE)
                inside = (row > y0) & (row <= height)
                line = target + (row - 1).to(gl.int64) * out_row_stride
                store_row(y, line, x0, out_unit, inside, width, CHANNELS, GROUP)
                if statistics is not None:
                    mean, squares = count_row(
                        y, mean, squares, statistics + counted, row - 1, x0, inside, height, width, CHANNELS, GROUP
                    )
                above, here = here, below


def launch(operands: Operands, tile: Tile) -> None:
    """Queue the convolution of a checked image [N, in, H, W] into out [N, H, W, out].

    Raises:
        ValueError: the layer isn't one of those that `suits` tells, or statistics are to be stored, and a strip isn't
            made of their blocks.
    """
    image, weight, epilogue, out, statistics = operands
    if not suits(operands):
        raise ValueError(
            f"this tile takes windows of 3 with a stride of 1, 2 to {MOST_IN} channels in and at most {MOST_OUT} out"
        )
    check_blocks(epilogue, tile.rows, 64)
    batch, height, width, outer = out.shape
    columns = next_power_of_two(outer)
    tiles_y, tiles_x = -(-height // tile.rows), -(-width // 64)
    tiles = batch * tiles_y * tiles_x
    on_grid(_conv_first_rows, min(tiles, multiprocessors(image.device) * tile.programs))(
        image, weight, out, epilogue.bias if epilogue.scale is None else epilogue.scale, epilogue.bias,
        statistics, out.stride(0), out.stride(1), out.stride(2) * out.element_size() // 16,
        height, width, tile.rows, tiles_y, tiles_x, tiles, operands.slices,
        DEEP=operands.deep, IN=weight.shape[0], CHANNELS=outer, OUT=columns,
        GROUP=min(columns, 64 // out.element_size()), AHEAD=tile.ahead,
        ACTIVATION=epilogue.activation.expression, SLOPE=epilogue.activation.slope,
        SCALED=epilogue.scale is not None, num_warps=4, maxnreg=registers(4, tile.programs),
        **DEPENDENT,
    )  # fmt: skip


def suits(operands: Operands) -> bool:
    """Return whether the kernel takes the layer: rows of a window of several channels that one product has."""
    inner, window, _, outer = operands.weight.shape
    return window == 3 and operands.stride == 1 and 1 < inner <= MOST_IN and outer <= MOST_OUT


def candidates(operands: Operands) -> Iterator[Tile]:
    """Yield tiles worth measuring for a layer that `suits`, likeliest first."""
    batch, height, width, outer = operands.out.shape
    few = ((4, 1), (3, 3)) if operands.epilogue.statistics else ((4, 3), (4, 2))
    for programs, ahead in few if outer <= 32 else ((2, 3),):
        for rows in evenest(batch, height, width, multiprocessors(operands.image.device) * programs):
            yield Tile(rows, programs, ahead)
