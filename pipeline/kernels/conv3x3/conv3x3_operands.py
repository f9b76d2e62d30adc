"""Operands of the kernels of the 3×3 and the 3×3×3 convolution, and their checks.

A volume [N, D, H, W, channels] is given as its slices one below the other, [N, D · H, W, channels], which is the same
memory: all that works on single pixels, or on blocks of them, then takes it for an image.
"""

from collections.abc import Collection
from typing import NamedTuple

from torch import Tensor

from pipeline.kernels.common.block_statistics import ROWS
from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_blocks, check_epilogue
from pipeline.kernels.common.nhwc import check

FOLDS = frozenset({"pool", "head", "slopes", "residual", "statistics"})
FOLDS_OF_VOLUMES = FOLDS - {"pool", "head"}
FOLDS_OF_TWO_SLICES = FOLDS_OF_VOLUMES - {"residual"}
STACKED = 32  # output channels of each of two slices that share a product's 64 rows


class Operands(NamedTuple):
    """The arguments of `conv3x3.conv3x3`; the weight of volumes has 27 taps or, stacked, 36."""

    x: Tensor
    weight: Tensor
    epilogue: Epilogue
    outputs: Outputs

    @property
    def deep(self) -> int:
        """Return how many slices a tile reads: 1 of images, 3 of volumes, 4 for two slices at a time."""
        return self.weight.shape[0] // 9

    @property
    def at_a_time(self) -> int:
        """Return how many slices of a volume a tile makes."""
        return 2 if self.deep == 4 else 1

    @property
    def outer(self) -> int:
        """Return how many output channels there are."""
        stacked = self.at_a_time > 1 and self.epilogue.bias is not None
        return len(self.epilogue.bias) if stacked and self.epilogue.bias is not None else self.weight.shape[1]

    @property
    def height(self) -> int:
        """Of an image, or of each slice of a volume."""
        return self.x.shape[1] // self.epilogue.slices

    @property
    def source(self) -> Tensor:
        """The input: x [N, H, W, in], or the volumes [N, D, H, W, in] in the same memory."""
        return self.x if self.deep == 1 else self.x.unflatten(1, (self.epilogue.slices, self.height))

    def tiles(self, rows: int, cols: int, out: int) -> tuple[int, int, int]:
        """Return how many tiles of this size cover the output's height, width and channels."""
        return -(-self.height // rows), -(-self.x.shape[2] // cols), -(-self.weight.shape[1] // out)


def check_operands(operands: Operands, of_images: Collection[str] = FOLDS, window: int | None = None) -> None:
    """Check x [N, H, W, in], weight [9 or 27, out, in] or [36, 64, in], the epilogue and its outputs.

    `of_images` is what the epilogue may ask for where these are images; `window` how many of x's channels the weight
    has, where these aren't all.

    Raises:
        ValueError: one of them isn't as it must be; the text names it.
    """
    x, weight, epilogue, outputs = operands
    batch, height, width, inner = x.shape
    outer, slices = operands.outer, epilogue.slices
    check("x", x, (batch, height, width, inner))
    check("weight", weight, _shape_of_weight(operands, window or inner))
    if height % slices or slices % operands.at_a_time or (slices > 1 and operands.deep == 1):
        raise ValueError(f"x must have {slices} slices of one height and a weight of volumes, got {list(x.shape)}")
    if epilogue.statistics and slices > 1 and operands.height % ROWS:
        raise ValueError(f"statistics of a volume need slices of a multiple of {ROWS} rows, got {operands.height}")
    if weight.dtype != x.dtype:
        raise ValueError(f"weight must have x's dtype, {x.dtype}, got {weight.dtype}")
    folds = {1: of_images, 3: FOLDS_OF_VOLUMES, 4: FOLDS_OF_TWO_SLICES}[operands.deep]
    check_epilogue(epilogue, outputs, (batch, height, width, outer), folds)


def _shape_of_weight(operands: Operands, inner: int) -> tuple[int, int, int]:
    """Return the shape that a weight must have, by its taps and the input channels that it multiplies."""
    taps, rows = len(operands.weight), operands.weight.shape[1]
    if taps == 36 and operands.outer <= STACKED:
        return taps, 2 * STACKED, inner
    return (taps if taps == 27 else 9), rows, inner


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
