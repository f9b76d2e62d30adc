"""The tiles of `polyphase_gluon` that are worth measuring."""

from collections.abc import Iterator

from pipeline.kernels.common.epilogue import required
from pipeline.kernels.common.nhwc import next_power_of_two
from pipeline.kernels.polyphase.polyphase_gluon import COLS, Tile
from pipeline.kernels.polyphase.polyphase_operands import Operands, matrices_of, split_of

SHARED_BYTES = 227 * 1024 - 2048  # what one program may have on compute capability 9.0, less the barriers


def candidates(operands: Operands) -> Iterator[Tile]:
    """The tiles worth measuring, the likeliest first."""
    size = operands.sources[0][0].element_size()
    # A step deeper than a source's channels multiplies zeros, one less deep moves more and shorter rows.
    held = [next_power_of_two(source.shape[3]) for source, _ in operands.sources]
    least, most = (min(128 // size, max(32 // size, channels)) for channels in (min(held), max(held)))
    other = most if most > least else least // 2
    staged = COLS * 64 * 4 * required(operands.outputs.out).element_size()
    for rows, depth in ((16, least), (8, least), (16, other)):
        for parts in (4, 8):
            stages = (SHARED_BYTES - staged * rows // parts) // (((rows + 2) * COLS + 4 * 64) * depth * size)
            if depth * size >= 32 and stages > 2 and not _halved(operands, rows):
                yield Tile(rows, depth, min(stages, 8), parts)
                break
    if not operands.window_of_3 and operands.deep == 1:  # of volumes it was never run
        yield from _holding(operands, least)


def _holding(operands: Operands, depth: int) -> Iterator[Tile]:
    """The tiles whose weights stay, where they leave room for three boxes or more."""
    size, stored = operands.sources[0][0].element_size(), required(operands.outputs.out).element_size()
    free = SHARED_BYTES - matrices_of(operands, depth) * 64 * depth * size
    for rows in (16, 8):
        for parts in (4, 8):
            stages = (free - COLS * 64 * 4 * stored * rows // parts) // ((rows + 2) * COLS * depth * size)
            if depth * size >= 32 and stages > 2 and not _halved(operands, rows):
                yield Tile(rows, depth, min(stages, 8), parts, held=True)
                break


def _halved(operands: Operands, rows: int) -> bool:
    """Whether groups of warps have half of so many rows each where that is no block of the statistics."""
    return operands.epilogue.statistics and split_of(operands) and rows < 16
