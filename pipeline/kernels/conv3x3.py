"""3×3 convolution, padding 1, stride 1, with bias, activation, max-pool and the 1×1 head in its epilogue.

Two kernels do it: `conv3x3_nine` in Triton, and `conv3x3_shared` in Gluon. The tile says which.
"""

from collections.abc import Iterator

from torch import Tensor
from torch.nn import functional

from pipeline.kernels import conv3x3_nine, conv3x3_shared
from pipeline.kernels.conv3x3_operands import MOST_CLASSES, Head, Operands, check_operands
from pipeline.kernels.gluon_boxes import missing
from pipeline.kernels.nhwc import interpreted, store

__all__ = ["MOST_CLASSES", "Head", "Tile", "candidates", "conv3x3", "pack", "reference"]

Tile = conv3x3_nine.Tile | conv3x3_shared.Tile


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
        beta: [out] fp32.
        out: [N, H, W, out], or None where only `pooled` or `head` is wanted.
        alpha: [out] fp32, or None for 1.
        relu: whether the activation is ReLU or nothing.
        pooled: [N, H // 2, W // 2, out].
        head: for at most 8 classes, and `out` channels that fit in one tile.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as above.
    """
    operands = Operands(x, weight, beta, out, alpha, relu, pooled, head)
    check_operands(operands)
    tile = tile or next(candidates(x, weight.shape[1], head=head is not None))
    (conv3x3_shared if isinstance(tile, conv3x3_shared.Tile) else conv3x3_nine).launch(operands, tile)


def candidates(x: Tensor, outer: int, *, head: bool = False) -> Iterator[Tile]:
    """The tiles worth measuring for x [N, H, W, in] and `outer` output channels, the likeliest first.

    Where `conv3x3_shared` can be built `conv3x3_nine` isn't tried: measured on an H200 with both on offer, it was
    chosen for none of the 17 convolutions of the classic net, in fp16 or fp8, at batch 1 or 8.
    """
    if missing() is None and not interpreted():
        return conv3x3_shared.candidates(x, outer, head=head)
    return conv3x3_nine.candidates(x, outer, head=head)
