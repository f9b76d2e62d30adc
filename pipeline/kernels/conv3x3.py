"""3×3 convolution, padding 1, stride 1, with bias, activation, max-pool and the 1×1 head in its epilogue.

The idea: an implicit matrix product over NHWC. For each of the nine taps TMA loads the box of pixels that the tap
sees: what lies outside the image arrives as zeros, negative coordinates included, so the border costs no address
arithmetic. One program per multiprocessor walks over the tiles; sums are fp32.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.epilogue import pooled_pairs, rounded, scale_shift
from pipeline.kernels.nhwc import check, check_vector, descriptor, multiprocessors, next_power_of_two, store

MOST_CLASSES = 8  # beyond it the head's sums cost more than a kernel of its own


class Head(NamedTuple):
    """The net's last 1×1 convolution: weight [classes, out] fp32, bias [classes] fp32, logits [N, classes, H, W]."""

    weight: Tensor
    bias: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Tile:
    """How the work is cut: a tile of `rows` × `cols` pixels and `out` channels, `depth` input channels a step.

    `swap` puts output channels in the rows of the matrix product: with 64 of them wgmma reads half as much shared
    memory per multiplication, because the pixels fill its 256 columns.
    """

    rows: int
    cols: int
    out: int
    depth: int
    swap: bool
    warps: int = 8
    stages: int = 3
    programs: int = 1  # per multiprocessor


def pack(weight: Tensor) -> Tensor:
    """A convolution's weight [out, in, 3, 3] as [9, out, in], the order in which the kernel walks the taps."""
    return weight.permute(2, 3, 0, 1).reshape(9, *weight.shape[:2]).contiguous()


def reference(
    x: Tensor,
    weight: Tensor,
    beta: Tensor,
    out: Tensor | None,
    *,
    alpha: Tensor | None = None,
    relu: bool = True,
    pooled: Tensor | None = None,
    head: Head | None = None,
) -> None:
    """What `conv3x3` computes, in plain PyTorch and fp32, on any device."""
    taps = weight.float().reshape(3, 3, *weight.shape[1:]).permute(2, 3, 0, 1)
    y = functional.conv2d(x.float().permute(0, 3, 1, 2), taps, padding=1).permute(0, 2, 3, 1)
    y = y * (1.0 if alpha is None else alpha) + beta
    y = y.relu() if relu else y
    if out is not None:
        store(y, out)
    if pooled is not None:
        store(functional.max_pool2d(y.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1), pooled)
    if head is not None:
        head.logits.copy_(functional.linear(y, head.weight, head.bias).permute(0, 3, 1, 2))


@triton.jit
def _kernel(
    x_boxes, weight_boxes, out_boxes, pooled_boxes, alpha, beta, head_weight, head_bias, logits,
    height, width, channels, tiles_y, tiles_x, tiles_out, tiles,
    IN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, OUT: tl.constexpr, DEPTH: tl.constexpr,
    CLASSES: tl.constexpr, RELU: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """x [N, H, W, IN], weight [9, channels, IN], out [N, H, W, channels], pooled [N, H/2, W/2, channels], NHWC."""
    PIXELS: tl.constexpr = ROWS * COLS
    STEPS: tl.constexpr = (IN + DEPTH - 1) // DEPTH
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        # Blocks of output channels come one after another: they read the same pixels, which are then in L2.
        o0 = tile % tiles_out * OUT
        place = tile // tiles_out
        x0 = place % tiles_x * COLS
        y0 = place // tiles_x % tiles_y * ROWS
        image = place // tiles_x // tiles_y
        acc = tl.zeros((OUT, PIXELS) if SWAP else (PIXELS, OUT), tl.float32)
        for step in tl.range(9 * STEPS):
            tap = step // STEPS
            c0 = step % STEPS * DEPTH
            box = x_boxes.load([image, y0 + tap // 3 - 1, x0 + tap % 3 - 1, c0]).reshape(PIXELS, DEPTH)
            taps = weight_boxes.load([tap, o0, c0]).reshape(OUT, DEPTH)
            acc = tl.dot(taps, box.T, acc) if SWAP else tl.dot(box, taps.T, acc)
        channel = o0 + tl.arange(0, OUT)
        y = scale_shift(acc, alpha, beta, channel, channels, alpha is not None, RELU, SWAP)
        if out_boxes is not None:
            stored = rounded(y, out_boxes.dtype)
            out_boxes.store([image, y0, x0, o0], (stored.T if SWAP else stored).reshape(1, ROWS, COLS, OUT))
        if pooled_boxes is not None:
            small = rounded(pooled_pairs(y, ROWS, COLS, OUT, SWAP), pooled_boxes.dtype)
            small = (small.T if SWAP else small).reshape(1, ROWS // 2, COLS // 2, OUT)
            pooled_boxes.store([image, y0 // 2, x0 // 2, o0], small)
        if CLASSES > 0:
            pixel = tl.arange(0, PIXELS)
            row, col = y0 + pixel // COLS, x0 + pixel % COLS
            inside = (row < height) & (col < width)
            for label in tl.static_range(CLASSES):
                mix = tl.load(head_weight + label * channels + channel, mask=channel < channels, other=0.0)
                logit = tl.sum(y * (mix[:, None] if SWAP else mix[None, :]), axis=0 if SWAP else 1)
                plane = logits + (image * CLASSES + label).to(tl.int64) * height * width
                tl.store(plane + row * width + col, logit + tl.load(head_bias + label), mask=inside)


def conv3x3(
    x: Tensor,
    weight: Tensor,
    beta: Tensor,
    out: Tensor | None,
    *,
    alpha: Tensor | None = None,
    relu: bool = True,
    pooled: Tensor | None = None,
    head: Head | None = None,
    tile: Tile | None = None,
) -> None:
    """act(conv(x) · alpha + beta) written into `out`, its 2×2 maxima into `pooled`, the head's logits into `head`.

    Args:
        x: [N, H, W, in], fp16 or fp8, a channel slice of a wider tensor at will.
        weight: [9, out, in] of x's dtype, from `pack`.
        beta: [out] fp32; alpha likewise, or None for 1.
        out: [N, H, W, out], or None where only `pooled` or `head` is wanted.
        relu: whether the activation is ReLU or nothing.
        pooled: [N, H // 2, W // 2, out].
        head: for at most 8 classes, and `out` channels that fit in one tile.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    batch, height, width, inner = x.shape
    outer = weight.shape[1]
    tile = tile or next(candidates(x, outer, head=head is not None))
    check_operands(x, weight, beta, alpha, (out, pooled))
    if head is not None:
        check_head(head, outer, tile.out, (batch, height, width))
    tiles_y, tiles_x = -(-height // tile.rows), -(-width // tile.cols)
    tiles_out = -(-outer // tile.out)
    tiles = batch * tiles_y * tiles_x * tiles_out
    half = [1, tile.rows // 2, tile.cols // 2, tile.out]
    _kernel[min(tiles, multiprocessors(x.device) * tile.programs),](
        descriptor(x, [1, tile.rows, tile.cols, tile.depth]),
        descriptor(weight, [1, tile.out, tile.depth]),
        None if out is None else descriptor(out, [1, tile.rows, tile.cols, tile.out]),
        None if pooled is None else descriptor(pooled, half),
        alpha,
        beta,
        *(head or (None, None, None)),
        height,
        width,
        outer,
        tiles_y,
        tiles_x,
        tiles_out,
        tiles,
        IN=inner,
        ROWS=tile.rows,
        COLS=tile.cols,
        OUT=tile.out,
        DEPTH=tile.depth,
        CLASSES=0 if head is None else len(head.bias),
        RELU=relu,
        SWAP=tile.swap,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def check_operands(
    x: Tensor, weight: Tensor, beta: Tensor, alpha: Tensor | None, written: tuple[Tensor | None, Tensor | None]
) -> None:
    """Raise a ValueError that names the operand of a 3×3 convolution that is not as it must be."""
    batch, height, width, inner = x.shape
    outer = weight.shape[1]
    check("x", x, (batch, height, width, inner))
    check("weight", weight, (9, outer, inner))
    if weight.dtype != x.dtype:
        raise ValueError(f"weight must have x's dtype, {x.dtype}, got {weight.dtype}")
    check_vector("beta", beta, outer)
    if alpha is not None:
        check_vector("alpha", alpha, outer)
    out, pooled = written
    if out is not None:
        check("out", out, (batch, height, width, outer))
    if pooled is not None:
        check("pooled", pooled, (batch, height // 2, width // 2, outer))


def check_head(head: Head, outer: int, tile_out: int, size: tuple[int, int, int]) -> None:
    """Raise a ValueError unless this head can be folded into a tile of `tile_out` channels."""
    batch, height, width = size
    classes = len(head.bias)
    if outer > tile_out or classes > MOST_CLASSES:
        raise ValueError(f"a head of {classes} classes on {outer} channels doesn't fit a tile of {tile_out} channels")
    if tuple(head.weight.shape) != (classes, outer):
        raise ValueError(f"head.weight must be {[classes, outer]}, got {list(head.weight.shape)}")
    if tuple(head.logits.shape) != (batch, classes, height, width) or not head.logits.is_contiguous():
        raise ValueError(f"head.logits must be {[batch, classes, height, width]}, got {list(head.logits.shape)}")


def candidates(x: Tensor, outer: int, *, head: bool = False) -> Iterator[Tile]:
    """The tiles worth measuring for x [N, H, W, in] and `outer` output channels, the likeliest first."""
    fp8 = x.dtype == torch.float8_e4m3fn
    depth = min(128 if fp8 else 64, max(32 if fp8 else 16, next_power_of_two(x.shape[3])))
    if outer <= 64 or head:
        out = max(64, next_power_of_two(outer))
        yield Tile(16, 32, out, min(depth, 64), swap=True)
        yield Tile(16, 16, out, min(depth, 64), swap=True, warps=4, programs=2)
        yield Tile(8, 16, out, depth, swap=False, warps=4, programs=2)
    else:
        yield Tile(16, 16, 128, depth, swap=True)
        yield Tile(8, 32, 128, depth, swap=True)
        yield Tile(8, 16, 128, depth, swap=False)
        yield Tile(8, 16, 256 if outer >= 256 else 128, depth, swap=False)
        yield Tile(8, 8, 128, depth, swap=False, warps=4, stages=4, programs=2)
