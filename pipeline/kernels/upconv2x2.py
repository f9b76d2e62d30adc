"""2×2 transposed convolution, stride 2: a matrix product whose store is the pixel shuffle.

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

from pipeline.kernels import upconv2x2_turns
from pipeline.kernels.epilogue import rounded, scale_shift
from pipeline.kernels.gluon_boxes import missing
from pipeline.kernels.nhwc import (
    check,
    check_vector,
    descriptor,
    interpreted,
    multiprocessors,
    next_power_of_two,
    store,
)


@dataclass(frozen=True)
class Tile:
    """How the work is cut: `rows` × `cols` input pixels and `out` channels of each of their four output pixels."""

    rows: int
    cols: int
    out: int
    depth: int
    warps: int = 8
    stages: int = 3
    programs: int = 1  # per multiprocessor


def pack(weight: Tensor) -> Tensor:
    """A transposed convolution's weight [in, out, 2, 2] as [4, out, in]: entry 2 i + j makes output pixel (i, j)."""
    return weight.permute(2, 3, 1, 0).reshape(4, weight.shape[1], weight.shape[0]).contiguous()


def reference(x: Tensor, weight: Tensor, beta: Tensor, out: Tensor, *, alpha: Tensor | None = None) -> None:
    """What `upconv2x2` computes, in plain PyTorch and fp32, on any device."""
    batch, height, width, _ = x.shape
    y = torch.einsum("nhwc,koc->nhwko", x.float(), weight.float()) * (1.0 if alpha is None else alpha) + beta
    y = y.reshape(batch, height, width, 2, 2, -1).permute(0, 1, 3, 2, 4, 5)
    store(y.reshape(batch, 2 * height, 2 * width, -1), out)


@triton.jit
def _upconv2x2(
    x_boxes, weight_boxes, out_boxes, alpha, beta, channels, tiles_x, tiles_out, tiles,
    IN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, OUT: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Read x [N · H, W, IN], weight [4, channels, IN], out [N · H, 2, W, 2, channels]."""
    PIXELS: tl.constexpr = ROWS * COLS
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        o0 = tile % tiles_out * OUT
        x0 = tile // tiles_out % tiles_x * COLS
        y0 = tile // tiles_out // tiles_x * ROWS
        acc = tl.zeros((PIXELS, 4 * OUT), tl.float32)
        for step in tl.range((IN + DEPTH - 1) // DEPTH):
            box = x_boxes.load([y0, x0, step * DEPTH]).reshape(PIXELS, DEPTH)
            taps = weight_boxes.load([0, o0, step * DEPTH]).reshape(4 * OUT, DEPTH)
            acc = tl.dot(box, taps.T, acc)
        channel = o0 + tl.arange(0, 4 * OUT) % OUT
        y = rounded(scale_shift(acc, alpha, beta, channel, channels, alpha is not None, False, False), out_boxes.dtype)
        shuffled = y.reshape(ROWS, COLS, 2, 2, OUT).permute(0, 2, 1, 3, 4)
        out_boxes.store([y0, 0, x0, 0, o0], shuffled)


def upconv2x2(
    x: Tensor,
    weight: Tensor,
    beta: Tensor,
    out: Tensor,
    *,
    alpha: Tensor | None = None,
    tile: Tile | upconv2x2_turns.Tile | None = None,
) -> None:
    """The transposed convolution of x · alpha + beta, written into `out`.

    Args:
        x: [N, H, W, in], fp16 or fp8; the images must follow each other without a gap.
        weight: [4, out, in] of x's dtype, from `pack`.
        beta: [out] fp32.
        out: [N, 2 H, 2 W, out], a channel slice of a wider tensor at will.
        alpha: [out] fp32, or None for 1.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    batch, height, width, inner = x.shape
    outer = weight.shape[1]
    check("x", x, (batch, height, width, inner))
    check("weight", weight, (4, outer, inner))
    check("out", out, (batch, 2 * height, 2 * width, outer))
    check_vector("beta", beta, outer)
    if alpha is not None:
        check_vector("alpha", alpha, outer)
    if weight.dtype != x.dtype:
        raise ValueError(f"weight must have x's dtype, {x.dtype}, got {weight.dtype}")
    for name, tensor in (("x", x), ("out", out)):
        if batch > 1 and tensor.stride(0) != tensor.shape[1] * tensor.stride(1):
            raise ValueError(f"{name}'s images must follow each other without a gap, got {list(tensor.stride())}")
    tile = tile or next(candidates(x, outer))
    if isinstance(tile, upconv2x2_turns.Tile):
        upconv2x2_turns.launch(x, weight, beta, out, alpha, tile)
    else:
        launch(x, weight, beta, out, alpha, tile)


def launch(x: Tensor, weight: Tensor, beta: Tensor, out: Tensor, alpha: Tensor | None, tile: Tile) -> None:
    """Queue the kernel of this file on checked operands."""
    batch, height, width, inner = x.shape
    outer = weight.shape[1]
    tiles_x, tiles_out = -(-width // tile.cols), -(-outer // tile.out)
    tiles = -(-batch * height // tile.rows) * tiles_x * tiles_out
    _upconv2x2[min(tiles, multiprocessors(x.device) * tile.programs),](
        descriptor(x.reshape(batch * height, width, inner), [tile.rows, tile.cols, tile.depth]),
        descriptor(weight, [4, tile.out, tile.depth]),
        shuffling(out, tile),
        alpha,
        beta,
        outer,
        tiles_x,
        tiles_out,
        tiles,
        IN=inner,
        ROWS=tile.rows,
        COLS=tile.cols,
        OUT=tile.out,
        DEPTH=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def shuffling(out: Tensor, tile: Tile) -> TensorDescriptor:
    """`out` [N, 2 H, 2 W, channels] seen as [N · H, 2, W, 2, channels], one box for the four pixels of a tile."""
    batch, height, width, outer = out.shape
    shape = [batch * height // 2, 2, width // 2, 2, outer]
    strides = [2 * out.stride(1), out.stride(1), 2 * out.stride(2), out.stride(2), 1]
    return TensorDescriptor(out, shape, strides, [tile.rows, 2, tile.cols, 2, tile.out])


def candidates(x: Tensor, outer: int) -> Iterator[Tile | upconv2x2_turns.Tile]:
    """The tiles worth measuring for x [N, H, W, in] and `outer` output channels, the likeliest first."""
    if missing() is None and not interpreted():
        yield from upconv2x2_turns.candidates(x)
    fp8 = x.dtype == torch.float8_e4m3fn
    depth = min(128 if fp8 else 64, max(32 if fp8 else 16, next_power_of_two(x.shape[3])))
    out = min(64, max(16, next_power_of_two(outer)))
    # 64 pixels and no more: with 128 the answer was wrong on an H200 (Triton 3.6, relative error 5e-2), as if the next
    # tile's loads overtook the store.
    yield Tile(2, 32, out, depth, warps=4, programs=2)
    yield Tile(4, 16, out, depth, warps=4, programs=2)
