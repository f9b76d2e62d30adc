"""The network's first convolution of `conv_first`, its windows gathered straight into the registers that feed wgmma.

The idea: of a window's values a thread needs pairs that neighbour each other in a row of the image, so a pair is one
read, of 8 bytes where the stride is 2, rounded to fp16 on the spot. Neither windows nor results pass through shared
memory, where only the weights are; the image's rows come from the L1, which several taps and output rows share.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from pipeline.kernels.common.dependent_launch import DEPENDENT, let_the_next_begin, wait_for_those_before
from pipeline.kernels.common.epilogue import check_blocks
from pipeline.kernels.common.nhwc import multiprocessors, next_power_of_two
from pipeline.kernels.common.program import on_grid
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
)
from pipeline.kernels.conv_first.conv_first_operands import Operands

MOST_OUT = 128  # channels whose sums fit in the registers beside a row's windows


@dataclass(frozen=True)
class Tile:
    """A cut of the work: strips of `rows` × 16 · `warps` output pixels, `programs` on each multiprocessor."""

    rows: int
    warps: int = 4
    programs: int = 4


@gluon.jit
def _hold_weights(
    weight, held, CHANNELS: gl.constexpr, ENTRIES: gl.constexpr, STEPS: gl.constexpr, OUT: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    """Weight [ENTRIES, channels] into shared memory [STEPS, OUT, 16], its channels as `common/quads.py` has them."""
    spread: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [gl.num_warps(), 1], [1, 0])
    outer = channel_written(gl.arange(0, OUT, layout=gl.SliceLayout(1, spread)), GROUP).expand_dims(1)
    entry = gl.arange(0, 16, layout=gl.SliceLayout(0, spread)).expand_dims(0)
    for step in range(STEPS):
        at = step * 16 + entry
        values = gl.load(weight + at * CHANNELS + outer, mask=(at < ENTRIES) & (outer < CHANNELS), other=0.0)
        held.index(step).store(values)
    fence_async_shared()


@gluon.jit
def _load_windows(
    image, y, x0, height, width, z, slices,
    DEEP: gl.constexpr, IN: gl.constexpr, WINDOW: gl.constexpr, SPAN: gl.constexpr, STRIDE: gl.constexpr,
    STEPS: gl.constexpr,
):  # fmt: skip
    """Load the windows of a row of output pixels in fp16: [16 · warps, 16] for each 16 of their entries.

    Of volumes, IN planes are those of the slice before a slice z, of z, and of the one after it.
    """
    layout: gl.constexpr = row_layout(2, 16, gl.num_warps())
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
    image, weight, out, scale, bias, statistics, out_image_stride, out_row_stride, out_unit,
    height, width, out_height, out_width, rows, tiles_y, tiles_x, tiles, slices,
    DEEP: gl.constexpr, IN: gl.constexpr, CHANNELS: gl.constexpr, WINDOW: gl.constexpr, SPAN: gl.constexpr,
    STRIDE: gl.constexpr, STEPS: gl.constexpr,
    OUT: gl.constexpr, GROUP: gl.constexpr,
    ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Read image [N, IN, H, W] fp32 and weight [IN · WINDOW · SPAN, channels] fp16; write out [N, H', W', channels].

    With DEEP = 3 the image is volumes [N / slices, IN / 3, slices, H, W].
    """
    sums: gl.constexpr = sums_layout(OUT, gl.float16, num_warps)
    COLS: gl.constexpr = 16 * num_warps
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([OUT, 16], gl.float16)
    held = gl.allocate_shared_memory(gl.float16, [STEPS, OUT, 16], shared)
    let_the_next_begin()
    wait_for_those_before()
    _hold_weights(weight, held, CHANNELS, IN * WINDOW * SPAN, STEPS, OUT, GROUP)
    ends = load_ends(scale, bias, CHANNELS, SCALED, GROUP, OUT, sums)
    operand: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        number = tile // tiles_x // tiles_y
        y0, x0 = tile // tiles_x % tiles_y * rows, tile % tiles_x * COLS
        source = image + (number // slices).to(gl.int64) * (IN // DEEP) * slices * height * width
        target = out + number.to(gl.int64) * out_image_stride
        mean, squares = nothing_counted(COLS, OUT, sums)
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
            result = finish_rows(acc, ends, SCALED, ACTIVATION, SLOPE)
            line = target + y.to(gl.int64) * out_row_stride  # type: ignore[attr-defined]
            store_row(result, line, x0, out_unit, y < out_height, out_width, CHANNELS, GROUP)
            if statistics is not None:
                mean, squares = count_row(
                    result,
                    mean,
                    squares,
                    statistics + counted,
                    y,
                    x0,
                    y < out_height,
                    out_height,
                    out_width,
                    CHANNELS,
                    GROUP,
                )


def launch(operands: Operands, tile: Tile) -> None:
    """Queue the convolution of a checked image [N, in, H, W] into out [N, H', W', out].

    Raises:
        ValueError: statistics are to be stored, and a strip isn't made of their blocks.
    """
    image, weight, epilogue, out, statistics = operands
    check_blocks(epilogue, tile.rows, 16 * tile.warps)
    height, width = image.shape[-2:]
    batch, out_height, out_width, outer = out.shape
    inner, window, span, _ = weight.shape
    columns = next_power_of_two(outer)
    tiles_y, tiles_x = -(-out_height // tile.rows), -(-out_width // (16 * tile.warps))
    tiles = batch * tiles_y * tiles_x
    on_grid(_conv_first_gluon, min(tiles, multiprocessors(image.device) * tile.programs))(
        image, weight, out, epilogue.bias if epilogue.scale is None else epilogue.scale, epilogue.bias,
        statistics, out.stride(0), out.stride(1), out.stride(2) * out.element_size() // 16,
        height, width, out_height, out_width, tile.rows, tiles_y, tiles_x, tiles, operands.slices,
        DEEP=operands.deep, IN=inner, CHANNELS=outer, WINDOW=window, SPAN=span, STRIDE=operands.stride,
        STEPS=-(-inner * window * span // 16),
        OUT=columns, GROUP=min(columns, 64 // out.element_size()),
        ACTIVATION=epilogue.activation.expression, SLOPE=epilogue.activation.slope,
        SCALED=epilogue.scale is not None, num_warps=tile.warps, maxnreg=registers(tile.warps, tile.programs),
        **DEPENDENT,
    )  # fmt: skip


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
