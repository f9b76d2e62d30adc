"""What the kernels of the 3×3 convolution are given, and what they demand of it."""

from typing import NamedTuple

from torch import Tensor

from pipeline.kernels.nhwc import check, check_vector

MOST_CLASSES = 8  # the width of the narrowest product: beyond it the head is a kernel of its own


class Head(NamedTuple):
    """The net's last 1×1 convolution: weight [classes, out] fp32, bias [classes] fp32, logits [N, classes, H, W]."""

    weight: Tensor
    bias: Tensor
    logits: Tensor


class Operands(NamedTuple):
    """The arguments of `conv3x3.conv3x3`, checked."""

    x: Tensor
    weight: Tensor
    beta: Tensor
    out: Tensor | None
    alpha: Tensor | None
    relu: bool
    pooled: Tensor | None
    head: Head | None

    def tiles(self, rows: int, cols: int, out: int) -> tuple[int, int, int]:
        """How many tiles of this size cover the output's height, width and channels."""
        _, height, width, _ = self.x.shape
        return -(-height // rows), -(-width // cols), -(-self.weight.shape[1] // out)


def check_operands(operands: Operands) -> None:
    """Raise a ValueError that names the operand of a 3×3 convolution that is not as it must be."""
    x, weight, beta, out, alpha, _, pooled, head = operands
    batch, height, width, inner = x.shape
    outer = weight.shape[1]
    check("x", x, (batch, height, width, inner))
    check("weight", weight, (9, outer, inner))
    if weight.dtype != x.dtype:
        raise ValueError(f"weight must have x's dtype, {x.dtype}, got {weight.dtype}")
    check_vector("beta", beta, outer)
    if alpha is not None:
        check_vector("alpha", alpha, outer)
    if out is not None:
        check("out", out, (batch, height, width, outer))
    if pooled is not None:
        check("pooled", pooled, (batch, height // 2, width // 2, outer))
    if head is not None:
        check_head(head, outer, (batch, height, width))


def check_head(head: Head, outer: int, size: tuple[int, int, int]) -> None:
    """Raise a ValueError unless this head fits a convolution of `outer` channels on images of this size."""
    batch, height, width = size
    classes = len(head.bias)
    if classes > MOST_CLASSES:
        raise ValueError(f"a folded head has at most {MOST_CLASSES} classes, got {classes}")
    if tuple(head.weight.shape) != (classes, outer):
        raise ValueError(f"head.weight must be {[classes, outer]}, got {list(head.weight.shape)}")
    if tuple(head.logits.shape) != (batch, classes, height, width) or not head.logits.is_contiguous():
        raise ValueError(f"head.logits must be {[batch, classes, height, width]}, got {list(head.logits.shape)}")


def check_folds(operands: Operands, tile_out: int) -> None:
    """Raise a ValueError where a head is to be folded and a tile holds only some of its channels."""
    outer = operands.weight.shape[1]
    if operands.head is not None and outer > tile_out:
        raise ValueError(f"a head on {outer} channels doesn't fit a tile of {tile_out}")
