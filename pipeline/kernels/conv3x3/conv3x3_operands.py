"""What the kernels of the 3×3 convolution are given, and what they demand of it."""

from typing import NamedTuple

from torch import Tensor

from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_blocks, check_epilogue
from pipeline.kernels.common.nhwc import check

FOLDS = frozenset({"pool", "head", "slopes", "residual", "statistics"})


class Operands(NamedTuple):
    """The arguments of `conv3x3.conv3x3`."""

    x: Tensor
    weight: Tensor
    epilogue: Epilogue
    outputs: Outputs

    def tiles(self, rows: int, cols: int, out: int) -> tuple[int, int, int]:
        """How many tiles of this size cover the output's height, width and channels."""
        _, height, width, _ = self.x.shape
        return -(-height // rows), -(-width // cols), -(-self.weight.shape[1] // out)


def check_operands(operands: Operands) -> None:
    """Check x [N, H, W, in], weight [9, out, in], the epilogue and its outputs.

    Raises:
        ValueError: one of them isn't as it must be; the text names it.
    """
    x, weight, epilogue, outputs = operands
    batch, height, width, inner = x.shape
    outer = weight.shape[1]
    check("x", x, (batch, height, width, inner))
    check("weight", weight, (9, outer, inner))
    if weight.dtype != x.dtype:
        raise ValueError(f"weight must have x's dtype, {x.dtype}, got {weight.dtype}")
    check_epilogue(epilogue, outputs, (batch, height, width, outer), FOLDS)


def check_folds(operands: Operands, rows: int, cols: int, tile_out: int) -> None:
    """Check that a tile of `rows` × `cols` pixels and `tile_out` channels can do what the epilogue asks.

    Raises:
        ValueError: a head is to be folded, and the tile holds only some of weight's [9, out, in] `out` channels; or
            statistics are to be stored, and the tile isn't made of their blocks of pixels.
    """
    outer = operands.weight.shape[1]
    if operands.epilogue.head is not None and outer > tile_out:
        raise ValueError(f"a head on {outer} channels doesn't fit a tile of {tile_out}")
    check_blocks(operands.epilogue, rows, cols)
