"""The network's last convolution, of up to 9×9 with up to 8 classes: reads NHWC and writes fp32 logits in NCHW.

In plain Triton the classes by all taps of a row of the window are the columns of one product, for a tile of pixels. The
sums of each tap are then moved to the pixel that they belong to, and added. Of 1×1 the pixels of an image lie in one
line, so that the logits of a class are stored in one go, at the pace of memory. 3×3 among zeros is faster by the kernel
of `conv3x3_narrow`, its eight columns the classes.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import triton
import triton.language as tl
from torch import Tensor

from pipeline.kernels.common import nhwc
from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.epilogue import MOST_CLASSES, Epilogue, Outputs, sums_of
from pipeline.kernels.common.kernel_op import CHANNELS, KernelOp, LayerDescription
from pipeline.kernels.common.program import evenest, on_grid
from pipeline.kernels.common.triton_epilogue import finish
from pipeline.kernels.conv3x3 import OP as CONV3X3
from pipeline.kernels.conv3x3 import conv3x3_narrow, pack
from pipeline.kernels.conv_first import seen_at

TAPS = (1, 9, 25, 49, 81)
MOST_SUMS = 2**15  # of a tile, that registers hold
PROGRAMS = 4  # of the Gluon kernel on each multiprocessor


@dataclass(frozen=True)
class Tile:
    """A cut of the work: `rows` × `cols` pixels, of which a window's reach less is stored, `depth` channels a step."""

    kernel: ClassVar[str] = "conv_head_triton"
    rows: int
    cols: int
    depth: int
    down: int = 1  # rows of the window in a product
    warps: int = 8
    stages: int = 1  # with one the L1 serves the rows that windows share


@dataclass(frozen=True)
class GluonTile(conv3x3_narrow.Tile):
    """A cut of the work by the kernel of `conv3x3_narrow`."""

    kernel: ClassVar[str] = "conv_head_gluon"


def reference(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs) -> None:
    """Compute `conv_head` in plain PyTorch and fp32, on any device."""
    sums = sums_of(x, weight, padding_mode=epilogue.padding_mode)
    _required(outputs).copy_(epilogue.of(sums).permute(0, 3, 1, 2))


@triton.jit
def _conv_head_triton(
    x, weight, logits, scale, bias, x_image_stride, x_row_stride, x_pixel_stride, height, width, tiles_x,
    IN: tl.constexpr, SIDE: tl.constexpr, CLASSES: tl.constexpr, SPAN: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, DOWN: tl.constexpr, PADDING: tl.constexpr,
    ACTIVATION: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Read x [N, H, W, IN] and weight [SIDE · SIDE, CLASSES, IN]; write logits [N, CLASSES, H, W] fp32.

    A product's columns are [DOWN, SPAN, GROUP] of rows, columns and classes of the window, powers of two.
    """
    STEPS: tl.constexpr = (IN + DEPTH - 1) // DEPTH
    number = tl.program_id(1).to(tl.int64)
    pixel = tl.arange(0, ROWS * COLS)
    y = tl.program_id(0) // tiles_x * (ROWS - DOWN + 1) + pixel // COLS
    left = tl.program_id(0) % tiles_x * (COLS - SIDE + 1) + pixel % COLS
    column = tl.arange(0, DOWN * SPAN * GROUP)
    label, across, below = column % GROUP, column // GROUP % SPAN, column // (GROUP * SPAN)
    col = seen_at(left - SIDE // 2, width, PADDING)
    acc = tl.zeros((ROWS * COLS, DOWN * SPAN * GROUP), tl.float32)
    for step in tl.range((SIDE + DOWN - 1) // DOWN * STEPS):
        fresh = step // STEPS * DOWN
        down = tl.minimum(fresh, SIDE - DOWN)  # no row beyond the window: zero times infinity is NaN
        channel = step % STEPS * DEPTH + tl.arange(0, DEPTH)
        row = seen_at(y + down - SIDE // 2, height, PADDING)
        inside = (row >= 0) & (row < height) & (col >= 0) & (col < width)
        source = x + number * x_image_stride + row[:, None] * x_row_stride + col[:, None] * x_pixel_stride
        window = tl.load(source + channel[None, :], mask=inside[:, None] & (channel < IN)[None, :], other=0.0)
        tap = ((down + below) * SIDE + across) * CLASSES + label
        known = ((down + below >= fresh) & (across < SIDE) & (label < CLASSES))[:, None] & (channel < IN)[None, :]
        taps = tl.load(weight + tap[:, None] * IN + channel[None, :], mask=known, other=0.0)
        acc = tl.dot(window, taps.T, acc)
    sums = acc.reshape(ROWS, COLS, DOWN * SPAN * GROUP)
    if SIDE > 1:  # along columns alone: the lanes of a warp then hold them
        right = tl.minimum(tl.arange(0, COLS)[None, :, None] + across[None, None, :], COLS - 1)
        sums = tl.gather(sums, tl.broadcast_to(right, sums.shape), axis=1)
        sums = tl.where((across < SIDE)[None, None, :], sums, 0.0)  # for the same reason
    sums = tl.sum(sums.reshape(ROWS, COLS, DOWN, SPAN, GROUP), axis=3)
    if DOWN > 1:
        lower = tl.minimum(tl.arange(0, ROWS)[:, None] + tl.arange(0, DOWN)[None, :], ROWS - 1)[:, None, :, None]
        sums = tl.gather(sums, tl.broadcast_to(lower, sums.shape), axis=0)
    classes = tl.arange(0, GROUP)
    sums = tl.sum(sums, axis=2).reshape(ROWS * COLS, GROUP)
    sums = finish(sums, scale, bias, classes, CLASSES, ACTIVATION, SLOPE, False)
    kept = (pixel % COLS < COLS - SIDE + 1) & (pixel // COLS < ROWS - DOWN + 1) & (y < height) & (left < width)
    plane = logits + (number * CLASSES + classes)[None, :] * height * width
    tl.store(plane + (y * width + left)[:, None], sums, mask=kept[:, None] & (classes < CLASSES)[None, :])


def conv_head(x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, tile: Tile | GluonTile) -> None:
    """Write the convolution of x [N, H, W, in] by [taps, classes, in] into logits [N, classes, H, W] fp32."""
    batch, height, width, inner = x.shape
    taps, classes = weight.shape[:2]
    if taps not in TAPS or classes > MOST_CLASSES:
        raise ValueError(f"weight must be [1, 9, 25, 49 or 81, at most {MOST_CLASSES}, in], got {list(weight.shape)}")
    nhwc.check("x", x, (batch, height, width, inner))
    nhwc.check_counted("x", x)
    nhwc.check_few_programs("x's batch", batch)
    if weight.dtype != x.dtype or tuple(weight.shape) != (taps, classes, inner) or not weight.is_contiguous():
        raise ValueError(f"weight must be {[taps, classes, inner]} {x.dtype}, got {list(weight.shape)} {weight.dtype}")
    if epilogue.bias is None or epilogue.parts - ({"padding_mode"} if isinstance(tile, Tile) else set()):
        raise ValueError(f"the epilogue must have a bias and fold nothing, got {epilogue.key}")
    nhwc.check_floats("bias", epilogue.bias, classes)
    nhwc.check_floats("scale", epilogue.scale, classes)
    logits = _required(outputs)
    nhwc.check_floats("logits", logits, batch, classes, height, width)
    if isinstance(tile, GluonTile):
        conv3x3_narrow.queue(x, weight, epilogue, outputs, tile, planar=True)
        return
    side, (span, group) = math.isqrt(taps), columns_of(weight)
    if side == 1 and x.stride(1) == width * x.stride(2):
        height, width = 1, height * width
    tiles_y, tiles_x = triton.cdiv(height, tile.rows - tile.down + 1), triton.cdiv(width, tile.cols - side + 1)
    on_grid(_conv_head_triton, tiles_y * tiles_x, batch)(
        x, weight, logits, epilogue.scale, epilogue.bias, *x.stride()[:3], height, width, tiles_x, IN=inner, SIDE=side,
        CLASSES=classes, SPAN=span, GROUP=group, ROWS=tile.rows, COLS=tile.cols, DEPTH=tile.depth, DOWN=tile.down,
        PADDING=epilogue.padding_mode, **epilogue.constants, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def _required(outputs: Outputs) -> Tensor:
    if outputs.logits is None or len(outputs.given) > 1:
        raise ValueError("logits must be given, and nothing else: this kernel writes nothing else")
    return outputs.logits


def columns_of(weight: Tensor) -> tuple[int, int]:
    """Return how many columns and classes a row of a window [taps, classes, in] has in a product, of at least 16."""
    span = nhwc.next_power_of_two(math.isqrt(len(weight)))
    return span, max(nhwc.next_power_of_two(weight.shape[1]), 16 // span)


def candidates(x: Tensor, weight: Tensor, epilogue: Epilogue, *_: object) -> Iterator[Tile | GluonTile]:
    """Yield tiles worth measuring for x [N, H, W, in] and weight [k · k, classes, in], likeliest first."""
    depth, columns = nhwc.depth_of(x), math.prod(columns_of(weight))
    narrow = len(weight) == 9 and not epilogue.parts and x.shape[3] <= conv3x3_narrow.MOST_IN
    if narrow and reaching_views_barred() is None and not nhwc.interpreted():
        for slots in (4, 3):
            for rows in evenest(x.shape[:3], nhwc.multiprocessors(x.device) * PROGRAMS):
                yield GluonTile(rows, 4, PROGRAMS, slots)
    elif len(weight) == 1:
        yield from (Tile(1, pixels, depth, warps=4, stages=3) for pixels in (128, 64, 256))
    else:
        for rows, cols, down, stages in ((8, 32, 2, 1), (8, 32, 1, 1), (4, 64, 1, 1), (8, 64, 1, 1), (8, 32, 1, 3)):
            if rows * cols * down * columns <= MOST_SUMS:
                yield Tile(rows, cols, depth, down, stages=stages)


def accepts(layer: LayerDescription) -> bool:
    """Return whether the kernels take a layer: it keeps height and width, and has few classes."""
    side = layer.window[0]
    square = side * side in TAPS and layer.is_square(side, 1, side // 2)
    return layer.kind == "conv2d" and square and layer.outer <= MOST_CLASSES and layer.inner % CHANNELS == 0


OP: KernelOp = replace(
    CONV3X3, name="conv_head", accepts=accepts, reference=reference, launch=conv_head, candidates=candidates,
    tile_types=(Tile, GluonTile), pack=pack, folds=frozenset({"padding_mode"}), writes=frozenset({"fp32"}),
    writes_logits=True,
)  # fmt: skip
