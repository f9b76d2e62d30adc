"""The transposed convolution of `upconv2x2` in plain Triton: a matrix product whose store is the pixel shuffle.

The idea: every input pixel makes four output pixels, each from its own weight matrix, and none overlap. A tile makes
one of the four of each of its pixels, and a TMA store with a box of five dimensions puts them where they belong, in one
half of the concatenation's buffer: no shuffle and no concat is ever run. The tiles of the other three come next, and
find the pixels in L2. The channels are the rows of the product, for `conv3x3_triton`'s reasons.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from pipeline.kernels.common.capability import fewest_rows
from pipeline.kernels.common.epilogue import Epilogue
from pipeline.kernels.common.nhwc import descriptor, multiprocessors, next_power_of_two
from pipeline.kernels.common.program import BoxTile, on_grid
from pipeline.kernels.common.triton_epilogue import finish, rounded


@dataclass(frozen=True)
class Tile(BoxTile):
    """A cut of the work: `rows` × `cols` input pixels and `out` channels of one of their four output pixels."""


@triton.jit
def _upconv2x2(
    x_boxes, weight_boxes, out_boxes, scale, bias, slopes, channels, tiles_x, tiles_out, tiles, height,
    DEEP: tl.constexpr,
    IN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, OUT: tl.constexpr, DEPTH: tl.constexpr,
    ACTIVATION: tl.constexpr, SLOPE: tl.constexpr,
):  # fmt: skip
    """Read x [N · H, W, IN], weight [4, channels, IN], out [N · H, 2, W, 2, channels].

    With DEEP = 2 the weight is [8, channels, IN], and the rows of x are of slices of `height`, which make two each.
    """
    PIXELS: tl.constexpr = ROWS * COLS
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        o0 = tile % tiles_out * OUT
        tap = tile // tiles_out % (4 * DEEP)
        place = tile // tiles_out // (4 * DEEP)
        y0, x0 = place // tiles_x * ROWS, place % tiles_x * COLS
        acc = tl.zeros((OUT, PIXELS), tl.float32)
        for step in tl.range((IN + DEPTH - 1) // DEPTH):
            box = x_boxes.load([y0, x0, step * DEPTH]).reshape(PIXELS, DEPTH)
            taps = weight_boxes.load([tap, o0, step * DEPTH]).reshape(OUT, DEPTH)
            acc = tl.dot(taps, box.T, acc)
        channel = o0 + tl.arange(0, OUT)
        y = rounded(finish(acc, scale, bias, channel, channels, ACTIVATION, SLOPE, True, slopes), out_boxes.dtype)
        if DEEP == 2:
            y0 += (y0 // height + tap // 4) * height
        out_boxes.store([y0, tap // 2 % 2, x0, tap % 2, o0], y.T.reshape(ROWS, 1, COLS, 1, OUT))


def launch(x: Tensor, weight: Tensor, epilogue: Epilogue, out: Tensor, tile: Tile) -> None:
    """Queue the transposed convolution of checked x [N, H, W, in] by weight [4, out, in] to out [N, 2 H, 2 W, out].

    A weight [8, out, in] is of volumes, as in `upconv2x2_gluon.launch`.
    """
    batch, height, width, inner = x.shape
    outer = weight.shape[1]
    tiles_x, tiles_out = -(-width // tile.cols), -(-outer // tile.out)
    tiles = -(-batch * height // tile.rows) * tiles_x * tiles_out * len(weight)
    on_grid(_upconv2x2, min(tiles, multiprocessors(x.device) * tile.programs))(
        descriptor(x.reshape(batch * height, width, inner), [tile.rows, tile.cols, tile.depth]),
        descriptor(weight, [1, tile.out, tile.depth]),
        shuffling(out, tile),
        epilogue.scale,
        epilogue.bias,
        epilogue.slopes,
        outer,
        tiles_x,
        tiles_out,
        tiles,
        height // epilogue.slices,
        DEEP=len(weight) // 4,
        IN=inner,
        ROWS=tile.rows,
        COLS=tile.cols,
        OUT=tile.out,
        DEPTH=tile.depth,
        ACTIVATION=epilogue.activation.expression,
        SLOPE=epilogue.activation.slope,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def shuffling(out: Tensor, tile: Tile) -> TensorDescriptor:
    """`out` [N, 2 H, 2 W, channels] seen as [N · H, 2, W, 2, channels], in boxes of one of four pixels."""
    batch, height, width, outer = out.shape
    shape = [batch * height // 2, 2, width // 2, 2, outer]
    strides = [2 * out.stride(1), out.stride(1), 2 * out.stride(2), out.stride(2), 1]
    return TensorDescriptor(out, shape, strides, [tile.rows, 1, tile.cols, 1, tile.out])


def candidates(x: Tensor, outer: int) -> Iterator[Tile]:
    """Yield tiles worth measuring for x [N, H, W, in] and `outer` output channels, likeliest first."""
    fp8 = x.dtype == torch.float8_e4m3fn
    depth = min(128 if fp8 else 64, max(32 if fp8 else 16, next_power_of_two(x.shape[3])))
    out = min(128, max(fewest_rows(), next_power_of_two(outer)))
    yield Tile(8, 16, out, depth)
    yield Tile(8, 16, min(out, 64), depth, warps=4, programs=2)
    yield Tile(8, 8, out, depth, warps=4, programs=2)
