"""The transposed convolution of `upconv2x2` in plain Triton: a matrix product whose store is the pixel shuffle.

The idea: every input pixel makes four output pixels, each from its own weight matrix, and none overlap. One product
gives all four, and one TMA store with a box of five dimensions puts them where they belong, in one half of the
concatenation's buffer: no shuffle and no concat is ever run.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from pipeline.kernels.common.box_tile import BoxTile
from pipeline.kernels.common.epilogue import Epilogue
from pipeline.kernels.common.nhwc import descriptor, multiprocessors, next_power_of_two
from pipeline.kernels.common.program import on_grid
from pipeline.kernels.common.triton_epilogue import finish, rounded


@dataclass(frozen=True)
class Tile(BoxTile):
    """How the work is cut: `rows` × `cols` input pixels and `out` channels of each of their four output pixels."""


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
        deep = tile // tiles_out % DEEP
        x0 = tile // tiles_out // DEEP % tiles_x * COLS
        y0 = tile // tiles_out // DEEP // tiles_x * ROWS
        acc = tl.zeros((PIXELS, 4 * OUT), tl.float32)
        for step in tl.range((IN + DEPTH - 1) // DEPTH):
            box = x_boxes.load([y0, x0, step * DEPTH]).reshape(PIXELS, DEPTH)
            taps = weight_boxes.load([4 * deep, o0, step * DEPTH]).reshape(4 * OUT, DEPTH)
            acc = tl.dot(box, taps.T, acc)
        channel = o0 + tl.arange(0, 4 * OUT) % OUT
        y = rounded(finish(acc, scale, bias, channel, channels, ACTIVATION, SLOPE, False, slopes), out_boxes.dtype)
        shuffled = y.reshape(ROWS, COLS, 2, 2, OUT).permute(0, 2, 1, 3, 4)
        if DEEP == 2:
            y0 += (y0 // height + deep) * height
        out_boxes.store([y0, 0, x0, 0, o0], shuffled)


def launch(x: Tensor, weight: Tensor, epilogue: Epilogue, out: Tensor, tile: Tile) -> None:
    """Queue the transposed convolution of checked x [N, H, W, in] by weight [4, out, in] to out [N, 2 H, 2 W, out].

    A weight [8, out, in] is of volumes, as in `upconv2x2_gluon.launch`.
    """
    batch, height, width, inner = x.shape
    outer = weight.shape[1]
    tiles_x, tiles_out = -(-width // tile.cols), -(-outer // tile.out)
    tiles = -(-batch * height // tile.rows) * tiles_x * tiles_out * (len(weight) // 4)
    on_grid(_upconv2x2, min(tiles, multiprocessors(x.device) * tile.programs))(
        descriptor(x.reshape(batch * height, width, inner), [tile.rows, tile.cols, tile.depth]),
        descriptor(weight, [4, tile.out, tile.depth]),
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
    """`out` [N, 2 H, 2 W, channels] seen as [N · H, 2, W, 2, channels], one box for the four pixels of a tile."""
    batch, height, width, outer = out.shape
    shape = [batch * height // 2, 2, width // 2, 2, outer]
    strides = [2 * out.stride(1), out.stride(1), 2 * out.stride(2), out.stride(2), 1]
    return TensorDescriptor(out, shape, strides, [tile.rows, 2, tile.cols, 2, tile.out])


def candidates(x: Tensor, outer: int) -> Iterator[Tile]:
    """The tiles worth measuring for x [N, H, W, in] and `outer` output channels, the likeliest first."""
    fp8 = x.dtype == torch.float8_e4m3fn
    depth = min(128 if fp8 else 64, max(32 if fp8 else 16, next_power_of_two(x.shape[3])))
    out = min(64, max(16, next_power_of_two(outer)))
    # 64 pixels and no more: with 128 the answer was wrong on an H200 (Triton 3.6, relative error 5e-2), as if the next
    # tile's loads overtook the store.
    yield Tile(2, 32, out, depth, warps=4, programs=2)
    yield Tile(4, 16, out, depth, warps=4, programs=2)
