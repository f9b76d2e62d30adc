"""The network's first convolution, 3×3 to 7×7 with stride 1 or 2: reads the user's fp32 NCHW batch and writes NHWC.

The taps of a 3×3 window of three channels are 27 values a pixel: a few steps of a matrix product. TMA can't load rows
of 6 bytes, so each program gathers its pixels' windows with plain loads, most of which the L1 answers. The tile names
the kernel: `conv_first_triton`, which any GPU and the interpreter run; `conv_first_gluon`, which gathers pairs of a
window's values straight into the registers of products; and for 3×3 windows, a stride of 1 and few channels
`conv_first_rows`, which walks down a strip: each warp alone reads a row of up to four channels once and keeps it for
three output rows. Four columns fill a product's depth, of which two neighbouring pixels need all.

Of volumes with one channel (`VOLUME_OP`) a slice and its two neighbours are the three channels.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from pipeline.kernels.common import strips
from pipeline.kernels.common.capability import gluon_barred
from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_blocks, check_epilogue, store_reference
from pipeline.kernels.common.kernel_op import CHANNELS, KernelOp, LayerDescription, convolution, volume_convolution
from pipeline.kernels.common.nhwc import descriptor, interpreted, multiprocessors, next_power_of_two, stride_of
from pipeline.kernels.common.program import evenest, on_grid, stored_by_slice
from pipeline.kernels.common.triton_epilogue import finish, rounded, store_statistics

FOLDS = frozenset({"statistics", "padding_mode"})
MOST_CHANNELS, MOST_ENTRIES = 14, 256  # beyond, the gather is dearer than a padded copy in NHWC
WINDOWS = (3, 5, 7)
MOST_OUT = 128  # channels whose sums fit in the registers beside a row's windows
MOST_IN_ROWS, MOST_OUT_ROWS = 4, 64  # channels whose row of a window one product has, and those whose weights fit
BEST_BY_ROWS = 32  # channels out: up to as many, no tile of `conv_first_gluon` was faster in any measured layer
SPAN = gl.constexpr(4)  # columns of a packed window of 3: it begins at an even one, and the first is zero


def margin(window: int) -> int:
    """Return how many columns left of its pixel a packed window begins: its padding, made even for loads of pairs."""
    return window // 2 + window // 2 % 2


def span(window: int) -> int:
    """Return how many columns a packed window has: a power of two."""
    return next_power_of_two(window + window // 2 % 2)


@triton.jit
def seen_at(index, length, PADDING: tl.constexpr):
    """Return where an index of a row or column lies in the map: outside mirrored or at the edge, for "zeros" itself."""
    if PADDING == "reflect":
        index = length - 1 - tl.abs(length - 1 - tl.abs(index))
    if PADDING == "replicate":
        index = tl.minimum(tl.maximum(index, 0), length - 1)
    return index


@dataclass(frozen=True)
class PlainTile:
    """A cut of the work: a tile of `rows` × `cols` output pixels and all or `out` of the output channels."""

    kernel: ClassVar[str] = "conv_first_triton"
    rows: int
    cols: int
    out: int
    warps: int = 4
    programs: int = 4  # per multiprocessor
    stages: int = 1


@triton.jit
def _conv_first_triton(
    image, weight, out_boxes, scale, bias, statistics, height, width, channels, tiles_y, tiles_x, tiles_out, tiles,
    slices, DEEP: tl.constexpr, IN: tl.constexpr, WINDOW: tl.constexpr, SPAN: tl.constexpr, LEFT: tl.constexpr,
    STRIDE: tl.constexpr, PADDING: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, OUT: tl.constexpr,
    ACTIVATION: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Read image [N, IN, H, W], or with DEEP = 3 volumes [N / slices, IN / 3, slices, H, W]."""
    PIXELS: tl.constexpr = ROWS * COLS
    ENTRIES: tl.constexpr = IN * WINDOW * SPAN
    pixel = tl.arange(0, PIXELS)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        o0 = tile % tiles_out * OUT
        place = tile // tiles_out
        x0 = place % tiles_x * COLS
        y0 = place // tiles_x % tiles_y * ROWS
        number = place // tiles_x // tiles_y
        channel = o0 + tl.arange(0, OUT)
        source = image + (number // slices).to(tl.int64) * (IN // DEEP) * slices * height * width
        acc = tl.zeros((PIXELS, OUT), tl.float32)
        for step in tl.static_range((ENTRIES + 15) // 16):
            entry = step * 16 + tl.arange(0, 16)
            line = entry // SPAN
            row = ((y0 + pixel // COLS) * STRIDE)[:, None] + (line % WINDOW - WINDOW // 2)[None, :]
            col = ((x0 + pixel % COLS) * STRIDE)[:, None] + (entry % SPAN - LEFT)[None, :]
            row, col = seen_at(row, height, PADDING), seen_at(col, width, PADDING)
            seen = (row >= 0) & (row < height) & (col >= 0) & (col < width) & (entry < ENTRIES)[None, :]
            plane = line // WINDOW
            if DEEP == 3:
                near = number % slices + plane // (IN // DEEP) - 1
                seen = seen & ((near >= 0) & (near < slices))[None, :]
                plane = plane % (IN // DEEP) * slices + near
            window = tl.load(source + (plane[None, :] * height + row) * width + col, mask=seen, other=0.0)
            known = (entry < ENTRIES)[:, None] & (channel < channels)[None, :]
            taps = tl.load(weight + entry[:, None] * channels + channel[None, :], mask=known, other=0.0)
            acc = tl.dot(window.to(tl.float16), taps, acc)
        y = finish(acc, scale, bias, channel, channels, ACTIVATION, SLOPE, False)
        if statistics is not None:
            store_statistics(
                y, statistics, number, y0, x0, (height - 1) // STRIDE + 1, (width - 1) // STRIDE + 1, channel, channels,
                ROWS, COLS, False,
            )  # fmt: skip
        out_boxes.store([number, y0, x0, o0], rounded(y, out_boxes.dtype).reshape(1, ROWS, COLS, OUT))


def triton_candidates(outer: int, *, statistics: bool) -> Iterator[PlainTile]:
    """Yield tiles worth measuring for `outer` output channels, likeliest first."""
    out = min(128, max(16, next_power_of_two(outer)))
    yield PlainTile(8, 16, out)
    if not statistics:
        yield PlainTile(4, 32, out)
        yield PlainTile(2, 32, out, programs=8)


@dataclass(frozen=True)
class GatherTile:
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


Tile = PlainTile | GatherTile | RowsTile


@gluon.jit
def _hold_weights(
    weight, held, CHANNELS: gl.constexpr, ENTRIES: gl.constexpr, STEPS: gl.constexpr, OUT: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    """Weight [ENTRIES, channels] into shared memory [STEPS, OUT, 16], its channels as `channel_written` has them."""
    spread: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [gl.num_warps(), 1], [1, 0])
    outer = strips.channel_written(gl.arange(0, OUT, layout=gl.SliceLayout(1, spread)), GROUP).expand_dims(1)
    entry = gl.arange(0, 16, layout=gl.SliceLayout(0, spread)).expand_dims(0)
    for step in range(STEPS):
        at = step * 16 + entry
        values = gl.load(weight + at * CHANNELS + outer, mask=(at < ENTRIES) & (outer < CHANNELS), other=0.0)
        held.index(step).store(values)
    fence_async_shared()


@gluon.jit
def _load_windows(
    image, y, x0, height, width, z, slices, DEEP: gl.constexpr, IN: gl.constexpr, WINDOW: gl.constexpr,
    SPAN: gl.constexpr, STRIDE: gl.constexpr, STEPS: gl.constexpr, PADDING: gl.constexpr,
):  # fmt: skip
    """Load the windows of a row of output pixels in fp16: [16 · warps, 16] for each 16 of their entries."""
    layout: gl.constexpr = strips.row_layout(2, 16, gl.num_warps())
    pixel = gl.arange(0, 16 * gl.num_warps(), layout=gl.SliceLayout(1, layout))
    left: gl.constexpr = WINDOW // 2 + WINDOW // 2 % 2
    parts = ()
    for step in gl.static_range(STEPS):
        entry = step * 16 + gl.arange(0, 16, layout=gl.SliceLayout(0, layout))
        line = entry // SPAN
        row = y * STRIDE + line % WINDOW - WINDOW // 2
        col = ((x0 + pixel) * STRIDE - left).expand_dims(1) + (entry % SPAN).expand_dims(0)
        row, col = seen_at(row, height, PADDING), seen_at(col, width, PADDING)
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
    WINDOW: gl.constexpr, SPAN: gl.constexpr, STRIDE: gl.constexpr, PADDING: gl.constexpr, STEPS: gl.constexpr,
    OUT: gl.constexpr, GROUP: gl.constexpr, ACTIVATION: gl.constexpr, SLOPE: gl.constexpr, SCALED: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """Read image [N, IN, H, W], or volumes as `conv_first_triton`, and weight; write out [N, H', W', channels]."""
    sums: gl.constexpr = strips.sums_layout(OUT, gl.float16, num_warps)
    COLS: gl.constexpr = 16 * num_warps
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([OUT, 16], gl.float16)
    held = gl.allocate_shared_memory(gl.float16, [STEPS, OUT, 16], shared)
    gdc_launch_dependents()
    gdc_wait()
    _hold_weights(weight, held, CHANNELS, IN * WINDOW * SPAN, STEPS, OUT, GROUP)
    ends = strips.load_ends(scale, bias, CHANNELS, SCALED, GROUP, OUT, sums)
    operand: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        number = tile // tiles_x // tiles_y
        y0, x0 = tile // tiles_x % tiles_y * rows, tile % tiles_x * COLS
        source = image + (number // slices).to(gl.int64) * (IN // DEEP) * slices * height * width
        target = out + number.to(gl.int64) * out_image_stride
        mean, squares = strips.nothing_counted(COLS, OUT, sums)
        counted = number.to(gl.int64) * ((out_height + 7) // 8) * ((out_width + 15) // 16) * (2 * CHANNELS)
        for y in range(y0, gl.minimum(y0 + rows, out_height)):
            parts = _load_windows(
                source, y, x0, height, width, number % slices, slices, DEEP, IN, WINDOW, SPAN, STRIDE, STEPS, PADDING
            )
            acc = gl.zeros([COLS, OUT], gl.float32, sums)
            for step in gl.static_range(STEPS):
                window = gl.convert_layout(parts[step], operand, assert_trivial=True)
                acc = warpgroup_mma(window, held.index(step).permute((1, 0)), acc, use_acc=step > 0, is_async=True)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            result = strips.finish_rows(acc, ends, SCALED, ACTIVATION, SLOPE)
            line = target + y.to(gl.int64) * out_row_stride  # type: ignore[attr-defined]
            strips.store_row(result, line, x0, out_unit, y < out_height, out_width, CHANNELS, GROUP)
            if statistics is not None:
                mean, squares = strips.count_row(
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
    outer = strips.channel_written(column, GROUP)
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
    layout: gl.constexpr = strips.row_layout(1, 4, gl.num_warps())
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
    return strips.as_operand(gl.join(low, high).reshape([low.shape[0], 8]), sums, gl.float16)


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
    ends = strips.load_ends(scale, bias, CHANNELS, SCALED, GROUP, OUT, sums, FOLD)
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
        mean, squares = strips.nothing_counted(UNITS, OUT, sums)
        for turn in range(0, gl.minimum(rows, height - y0) + 2, 3):
            for step in gl.static_range(3):
                row = y0 - 1 + turn + step
                queue = queue + (_load_row(place, row + AHEAD, DEEP, IN, FOLD),)  # type: ignore[assignment]
                below = _operand_of(queue[0], sums)  # type: ignore[misc]
                queue = queue[1:]
                acc = mma_v2(below, taps[2], mma_v2(here, taps[1], mma_v2(above, taps[0], nothing)))
                above, here = here, below
                y = strips.finish_rows(acc, ends, SCALED, ACTIVATION, SLOPE)
                inside = (row > y0) & (row <= gl.minimum(y0 + rows, height))
                line = target + (row - 1).to(gl.int64) * out_row_stride
                strips.store_row(y, line, x0, out_unit, inside, width, CHANNELS, GROUP, FOLD=FOLD)
                if statistics is not None:
                    mean, squares = strips.count_row(
                        y, mean, squares, statistics + counted, row - 1, x0, inside, height, width, CHANNELS, GROUP
                    )


def gather_candidates(weight: Tensor, *, statistics: bool) -> Iterator[GatherTile]:
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
            yield GatherTile(rows, 4, programs)


def suits_rows(weight: Tensor, stride: int, padding_mode: str = "zeros") -> bool:
    """Return whether `conv_first_rows` takes the layer: a row of its window, all channels, fits in one product."""
    inner, window, _, outer = weight.shape
    plain = (window, stride, padding_mode) == (3, 1, "zeros")
    return plain and inner <= MOST_IN_ROWS and outer <= MOST_OUT_ROWS


def row_candidates(out: Tensor, *, statistics: bool) -> Iterator[RowsTile]:
    """Yield tiles worth measuring for a layer that `suits_rows`, likeliest first."""
    batch, height, width, outer = out.shape
    few = ((2, 3, 1), (3, 2, 1)) if outer > 32 else ((4, 2, 1), (4, 3, 1))
    if outer <= 16 and not statistics:
        few = ((4, 3, 2), (4, 3, 1))
    for programs, ahead, fold in few[:1] if statistics else few:
        at_once = multiprocessors(out.device) * programs
        for rows in evenest((batch, height, -(-width // fold)), at_once, (64, 16, 8)):
            yield RowsTile(rows, programs, ahead, fold)


def pack(weight: Tensor) -> Tensor:
    """Return a weight [out, in, k, k] as fp16 [in, k, span, out]: a row of a window, then zeros about it."""
    window = weight.shape[2]
    first = margin(window) - window // 2
    about = (0, 0, first, span(window) - window - first)
    return functional.pad(weight.permute(1, 2, 3, 0).half(), about).contiguous()


def reference(image: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `conv_first` in plain PyTorch, on any device: inputs rounded to fp16, sums in fp32.

    Of volumes each slice and its neighbours are an image [3 · in, H, W].
    """
    outputs = _by_slice(image, outputs)
    if image.ndim == 5:
        windows = functional.pad(image, (0, 0, 0, 0, 1, 1)).unfold(2, 3, 1)
        image = windows.permute(0, 2, 5, 1, 3, 4).flatten(2, 3).flatten(0, 1)  # of [N, D, 3, in, H, W]
    stride = stride_of(image.shape[2:], outputs.required.shape[1:3])
    window, padding = weight.shape[1], weight.shape[1] // 2
    first = margin(window) - padding  # before it and after the window are zeros
    taps = weight[:, :, first : first + window].permute(3, 0, 1, 2).float()
    image, mode = image.half().float(), epilogue.padding_mode
    if mode != "zeros":
        image, padding = functional.pad(image, [padding] * 4, mode), 0
    sums = functional.conv2d(image, taps, stride=stride, padding=padding)
    store_reference(epilogue.of(sums.permute(0, 2, 3, 1)), epilogue, outputs)


def conv_first(image: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile) -> None:
    """Write the convolution of the image through the epilogue into `outputs.out`: products in fp16, sums in fp32.

    The image is [N, in, H, W] fp32 contiguous; the size of out [N, H', W', out] tells the stride, 1 or 2. Of volumes
    [N, in, D, H, W], in at most 4, out is [N, D · H, W, out].
    """
    deep, slices = (3, image.shape[2]) if image.ndim == 5 else (1, 1)  # how many slices a window reaches over, and all
    outputs = _by_slice(image, outputs)
    inner, size = deep * image.shape[1], image.shape[-2:]
    if image.dtype != torch.float32 or not image.is_contiguous() or inner > MOST_CHANNELS:
        raise ValueError(f"image must be contiguous float32 of at most {MOST_CHANNELS} channels, got {image.dtype}")
    if image.numel() >= 2**31 * len(image):
        raise ValueError(f"image must have less than 2^31 values each, got {list(image.shape)}")
    window, outer = weight.shape[1], weight.shape[-1]
    if weight.dtype != torch.float16 or tuple(weight.shape) != (inner, window, span(window), outer):
        raise ValueError(f"weight must come from pack, for {inner} channels, got {list(weight.shape)} {weight.dtype}")
    out = outputs.required
    batch, out_height, out_width, _ = out.shape
    stride = stride_of(size, (out_height, out_width))
    check_epilogue(epilogue, outputs, (len(image) * slices, *(-(-side // stride) for side in size), outer), FOLDS)
    if isinstance(tile, RowsTile) and not suits_rows(weight, stride, epilogue.padding_mode):
        few = f"{MOST_IN_ROWS} channels in, {MOST_OUT_ROWS} out"
        raise ValueError(f"rows take 3×3 windows of stride 1 among zeros, at most {few}")
    fold, cols = getattr(tile, "fold", 1), tile.cols if isinstance(tile, PlainTile) else 16 * tile.warps
    check_blocks(epilogue, tile.rows, cols)
    if fold > 1 and epilogue.statistics:
        raise ValueError("statistics are of single pixels, and fold must be 1")
    tiles_y, tiles_x = -(-out_height // tile.rows), -(-out_width // (cols * fold))
    tiles, most = batch * tiles_y * tiles_x, multiprocessors(image.device) * tile.programs
    how: dict[str, object] = {"WINDOW": window, "SPAN": span(window), "STRIDE": stride}
    how["PADDING"] = epilogue.padding_mode
    if isinstance(tile, PlainTile):
        tiles_out = -(-outer // tile.out)
        tiles = tiles * tiles_out
        on_grid(_conv_first_triton, min(tiles, most))(
            image, weight, descriptor(out, [1, tile.rows, tile.cols, tile.out]), epilogue.scale, epilogue.bias,
            outputs.statistics, *size, outer, tiles_y, tiles_x, tiles_out, tiles, slices, DEEP=deep, IN=inner,
            LEFT=margin(window), ROWS=tile.rows, COLS=tile.cols, OUT=tile.out, **how, **epilogue.constants,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        return
    ends = (image, weight, out, epilogue.factors, epilogue.bias, outputs.statistics, *strips.steps_of(out))
    geometry = (tile.rows, tiles_y, tiles_x, tiles, slices)
    constants = strips.constants(epilogue, outer * fold, out.element_size(), tile.warps, tile.programs)
    constants |= {"DEEP": deep, "IN": inner}
    if isinstance(tile, RowsTile):
        on_grid(_conv_first_rows, min(tiles, most))(*ends, *size, *geometry, AHEAD=tile.ahead, FOLD=fold, **constants)
    else:
        how["STEPS"] = -(-inner * window * span(window) // 16)
        on_grid(_conv_first_gluon, min(tiles, most))(*ends, *size, out_height, out_width, *geometry, **how, **constants)


def candidates(image: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> Iterator[Tile]:
    """Yield tiles worth measuring, likeliest first; volumes are an image of as many channels as three slices have."""
    if gluon_barred() is not None or interpreted() or weight.shape[-1] > MOST_OUT:
        yield from triton_candidates(weight.shape[-1], statistics=epilogue.statistics)
        return
    out = _by_slice(image, outputs).required
    by_rows = suits_rows(weight, stride_of(image.shape[-2:], out.shape[1:3]), epilogue.padding_mode)
    if by_rows:
        yield from row_candidates(out, statistics=epilogue.statistics)
    if weight.shape[-1] > BEST_BY_ROWS or not by_rows:
        yield from gather_candidates(weight, statistics=epilogue.statistics)


def _by_slice(image: Tensor, outputs: Outputs) -> Outputs:
    return stored_by_slice(outputs, image.shape[2]) if image.ndim == 5 else outputs


def _accepts(layer: LayerDescription, *, stride: int) -> bool:
    window = layer.window[0]
    square = layer.is_square(window, stride, window // 2)
    if layer.kind != "conv2d" or not layer.reads_image or window not in WINDOWS or not square:
        return False
    few = layer.inner <= MOST_CHANNELS and layer.inner * window * span(window) <= MOST_ENTRIES
    return few and layer.outer % CHANNELS == 0


OP: KernelOp = KernelOp(
    name="conv_first", accepts=partial(_accepts, stride=1), reference=reference, launch=conv_first,
    candidates=candidates, library=convolution, taps=9,
    tile_types=(PlainTile, GatherTile, RowsTile), pack=pack,
    out_axis=3, folds=FOLDS, reads=frozenset({"fp32"}), reads_image=True,
)  # fmt: skip
STRIDED_OP: KernelOp = replace(
    OP, name="conv_first_strided", accepts=partial(_accepts, stride=2), library=partial(convolution, stride=2),
    taps=9 / 4, growth=0.5,
)  # fmt: skip
VOLUME_OP: KernelOp = replace(
    OP, name="conv_first_volumes", accepts=None, library=volume_convolution, taps=27,
    pack=lambda weight: pack(weight.transpose(1, 2).flatten(1, 2)),
)  # fmt: skip
