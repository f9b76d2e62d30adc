"""The tiles of `polyphase_gluon` that are worth measuring."""

from collections.abc import Iterator

from pipeline.kernels.common.epilogue import required
from pipeline.kernels.common.nhwc import next_power_of_two
from pipeline.kernels.polyphase.polyphase_boxes import COLS
from pipeline.kernels.polyphase.polyphase_gluon import Tile
from pipeline.kernels.polyphase.polyphase_operands import Operands, held_blocks, may_hold, split_of, spread_of

SHARED_BYTES = 227 * 1024 - 2048  # what one program may have on compute capability 9.0, less the barriers


def candidates(operands: Operands) -> Iterator[Tile]:
    """The tiles worth measuring, the likeliest first."""
    size = operands.sources[0][0].element_size()
    # A step deeper than a source's channels multiplies zeros, one less deep moves more and shorter rows.
    channels = [next_power_of_two(source.shape[3]) for source, _ in operands.sources]
    least, most = (min(128 // size, max(32 // size, count)) for count in (min(channels), max(channels)))
    other = most if most > least else least // 2
    for rows, depth in ((16, least), (8, least), (16, other)):
        yield from _fitting(operands, rows, depth, held=False)
    if may_hold(operands):
        for rows in (16, 8):
            yield from _fitting(operands, rows, least, held=True)


def _fitting(operands: Operands, rows: int, depth: int, *, held: bool) -> Iterator[Tile]:
    """A tile with as many boxes as fit, stored in quarters if three do then; none where three don't."""
    size, stored = operands.sources[0][0].element_size(), required(operands.outputs.out).element_size()
    free = SHARED_BYTES - (64 // spread_of(operands) * held_blocks(operands, depth) * depth * size if held else 0)
    step = ((rows + 2) * COLS + (0 if held else 4 * 64)) * depth * size
    # Half of eight rows is no block of the statistics.
    halved = operands.epilogue.statistics and split_of(operands) and rows < 16
    for parts in (4, 8):
        stages = (free - COLS * 64 * 4 * stored * rows // parts) // step
        if depth * size >= 32 and stages > 2 and not halved:
            yield Tile(rows, depth, min(stages, 8), parts, held=held)
            return
