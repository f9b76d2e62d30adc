"""The 3×3 convolution of `conv_head` by the kernel of `conv3x3_narrow`, its eight columns the classes.

The idea: a product of 64 pixels by 8 classes leaves a class of eight neighbouring pixels to eight threads, which is one
sector of a plane of logits: they are stored from the registers, in NCHW.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.epilogue import Epilogue
from pipeline.kernels.conv3x3 import conv3x3_narrow

PROGRAMS = 4  # on each multiprocessor


@dataclass(frozen=True)
class Tile:
    """A cut of the work: as by `conv3x3_narrow.Tile`."""

    rows: int
    programs: int
    ahead: int
    slots: int = 0


def launch(x: Tensor, weight: Tensor, epilogue: Epilogue, logits: Tensor, tile: Tile) -> None:
    """Queue the convolution of checked x [N, H, W, in] by weight [9, classes, in] into logits [N, classes, H, W]."""
    strips = conv3x3_narrow.Tile(tile.rows, 4, tile.programs, tile.ahead, tile.slots)
    conv3x3_narrow.queue(x, weight, epilogue, logits, strips, planar=True)


def candidates(x: Tensor) -> Iterator[Tile]:
    """Yield tiles worth measuring for x [N, H, W, in], likeliest first."""
    ways = [(0, 4), (0, 3)] if reaching_views_barred() is None else [(2, 0), (3, 0)]
    for ahead, slots in ways:
        for rows in conv3x3_narrow.strips_of(x, PROGRAMS):
            yield Tile(rows, PROGRAMS, ahead, slots)
