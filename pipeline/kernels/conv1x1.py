"""1×1 convolution: a matrix product over the pixels of an NHWC tensor, with the common epilogue.

The idea: the pixels of all images lie in one line, so tiles know nothing of rows and columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.epilogue import rounded, scale_shift
from pipeline.kernels.nhwc import check, check_vector, descriptor, multiprocessors, next_power_of_two, store


@dataclass(frozen=True)
class Tile:
    """How the work is cut: `pixels` × `out` channels, `depth` input channels a step."""

    pixels: int
    out: int
    depth: int
    warps: int = 8
    stages: int = 3
    programs: int = 1  # per multiprocessor


def pack(weight: Tensor) -> Tensor:
    """A convolution's weight [out, in, 1, 1] as [out, in]."""
    return weight.reshape(weight.shape[:2]).contiguous()


def reference(
    x: Tensor, weight: Tensor, beta: Tensor, out: Tensor, *, alpha: Tensor | None = None, relu: bool = False
) -> None:
    """What `conv1x1` computes, in plain PyTorch and fp32, on any device."""
    y = functional.linear(x.float(), weight.float()) * (1.0 if alpha is None else alpha) + beta
    store(y.relu() if relu else y, out)


@triton.jit
def _conv1x1(
    x_boxes, weight_boxes, out_boxes, alpha, beta, channels, tiles_out, tiles,
    IN: tl.constexpr, PIXELS: tl.constexpr, OUT: tl.constexpr, DEPTH: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Read x [pixels, IN], weight [channels, IN], out [pixels, channels]."""
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        o0 = tile % tiles_out * OUT
        p0 = tile // tiles_out * PIXELS
        acc = tl.zeros((PIXELS, OUT), tl.float32)
        for step in tl.range((IN + DEPTH - 1) // DEPTH):
            box = x_boxes.load([p0, step * DEPTH])
            taps = weight_boxes.load([o0, step * DEPTH])
            acc = tl.dot(box, taps.T, acc)
        channel = o0 + tl.arange(0, OUT)
        y = scale_shift(acc, alpha, beta, channel, channels, alpha is not None, RELU, False)
        out_boxes.store([p0, o0], rounded(y, out_boxes.dtype))


def conv1x1(
    x: Tensor,
    weight: Tensor,
    beta: Tensor,
    out: Tensor,
    *,
    alpha: Tensor | None = None,
    relu: bool = False,
    tile: Tile | None = None,
) -> None:
    """act(x · weightᵀ · alpha + beta) written into `out`.

    Args:
        x: [N, H, W, in], fp16 or fp8; the pixels must follow each other at one step, as in a channel slice.
        weight: [out, in] of x's dtype, from `pack`.
        beta: [out] fp32.
        out: [N, H, W, out], laid out as x.
        alpha: [out] fp32, or None for 1.
        relu: whether the activation is ReLU or nothing.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    batch, height, width, inner = x.shape
    outer = weight.shape[0]
    check("x", x, (batch, height, width, inner))
    check("weight", weight, (outer, inner))
    check("out", out, (batch, height, width, outer))
    check_vector("beta", beta, outer)
    if alpha is not None:
        check_vector("alpha", alpha, outer)
    if weight.dtype != x.dtype:
        raise ValueError(f"weight must have x's dtype, {x.dtype}, got {weight.dtype}")
    tile = tile or next(candidates(x, outer))
    lines, out_lines = in_line("x", x), in_line("out", out)
    tiles_out = -(-outer // tile.out)
    tiles = -(-len(lines) // tile.pixels) * tiles_out
    _conv1x1[min(tiles, multiprocessors(x.device) * tile.programs),](
        descriptor(lines, [tile.pixels, tile.depth]),
        descriptor(weight, [tile.out, tile.depth]),
        descriptor(out_lines, [tile.pixels, tile.out]),
        alpha,
        beta,
        outer,
        tiles_out,
        tiles,
        IN=inner,
        PIXELS=tile.pixels,
        OUT=tile.out,
        DEPTH=tile.depth,
        RELU=relu,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def in_line(name: str, tensor: Tensor) -> Tensor:
    """The tensor [N, H, W, C] as [N · H · W, C], without a copy."""
    try:
        return tensor.view(-1, tensor.shape[3])
    except RuntimeError as error:
        steps = list(tensor.stride())
        raise ValueError(f"{name}'s pixels must follow each other at one step, got strides {steps}") from error


def candidates(x: Tensor, outer: int) -> Iterator[Tile]:
    """The tiles worth measuring for x [N, H, W, in] and `outer` output channels, the likeliest first."""
    fp8 = x.dtype == torch.float8_e4m3fn
    depth = min(128 if fp8 else 64, max(32 if fp8 else 16, next_power_of_two(x.shape[3])))
    out = min(256, max(16, next_power_of_two(outer)))
    yield Tile(128, out, depth)
    yield Tile(128, min(out, 128), depth, warps=4, programs=2)
    yield Tile(64, min(out, 64), depth, warps=4, stages=4, programs=2)
