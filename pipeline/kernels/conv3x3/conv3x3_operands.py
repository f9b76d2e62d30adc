"""Operands of the kernels of the 3×3 and the 3×3×3 convolution, and their checks.

A volume [N, D, H, W, channels] is given as its slices one below the other, [N, D · H, W, channels], which is the same
memory: all that works on single pixels, or on blocks of them, then takes it for an image.
"""

from collections.abc import Collection
from typing import NamedTuple

from torch import Tensor

from pipeline.kernels.common.block_statistics import ROWS
from pipeline.kernels.common.epilogue import Epilogue, Outputs, check_blocks, check_convolution, check_epilogue

FOLDS = frozenset({"pool", "head", "slopes", "residual", "statistics"})
FOLDS_OF_VOLUMES = FOLDS - {"pool", "head"}
FOLDS_OF_TWO_SLICES = FOLDS_OF_VOLUMES - {"residual"}
STACKED = 32  # output channels of each of two slices that share a product's 64 rows
BLOCK = 64  # channels of a tile of a convolution in groups


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
        bias = self.epilogue.bias
        return self.weight.shape[1] if bias is None or self.at_a_time == 1 else len(bias)

    @property
    def height(self) -> int:
        """Of an image, or of each slice of a volume."""
        return self.x.shape[1] // self.epilogue.slices

    @property
    def source(self) -> Tensor:
        """The input: x [N, H, W, in], or the volumes [N, D, H, W, in] in the same memory."""
        return self.x if self.deep == 1 else self.x.unflatten(1, (self.epilogue.slices, self.height))

    def tiles(self, rows: int, cols: int, out: int) -> tuple[int, int, int]:
        """Return how many tiles cover height, width and channels; raise ValueError where one can't do what is asked."""
        outer = self.weight.shape[1]
        if self.epilogue.head is not None and outer > out:
            raise ValueError(f"a head on {outer} channels doesn't fit a tile of {out}")
        check_blocks(self.epilogue, rows, cols)
        return -(-self.height // rows), -(-self.x.shape[2] // cols), -(-outer // out)


def check_operands(operands: Operands, of_images: Collection[str] = FOLDS, window: int | None = None) -> None:
    """Raise ValueError where an operand isn't as `conv3x3.conv3x3` says; the text names it.

    `of_images` is what the epilogue may ask for where these are images; `window` how many of x's channels the weight
    has, where these aren't all.
    """
    x, weight, epilogue, outputs = operands
    outer, slices, taps = operands.outer, epilogue.slices, len(weight)
    stacked = taps == 36 and outer <= STACKED
    rows = 2 * STACKED if stacked else weight.shape[1]
    check_convolution(x, weight, (taps if stacked or taps == 27 else 9, rows, window or x.shape[3]))
    if x.shape[1] % slices or slices % operands.at_a_time or (slices > 1 and operands.deep == 1):
        raise ValueError(f"x must have {slices} slices of one height and a weight of volumes, got {list(x.shape)}")
    if epilogue.statistics and slices > 1 and operands.height % ROWS:
        raise ValueError(f"statistics of a volume need slices of a multiple of {ROWS} rows, got {operands.height}")
    folds = {1: of_images, 3: FOLDS_OF_VOLUMES, 4: FOLDS_OF_TWO_SLICES}[operands.deep]
    check_epilogue(epilogue, outputs, (*x.shape[:3], outer), folds)
