"""The tiles of `conv3x3_gluon` that are worth measuring."""

from collections.abc import Iterator
from dataclasses import replace

from pipeline.kernels.common.nhwc import next_power_of_two, shared_bytes
from pipeline.kernels.conv3x3.conv3x3_gluon import Tile
from pipeline.kernels.conv3x3.conv3x3_operands import Operands

RESERVED_BYTES = 2048  # of what a program may have: barriers, and what its groups of warps are handed over


def candidates(operands: Operands) -> Iterator[Tile]:
    """The tiles worth measuring for x [N, H, W, in] and weight [9, 27 or 36, out, in], the likeliest first.

    Those that fit in shared memory: a residual takes four quarters of a tile for each group of warps, an output alone
    two, each in the wider of their types; boxes and weights then have to do with less.
    """
    free = shared_bytes(operands.x.device) - RESERVED_BYTES
    return (tile for tile in _shapes(operands, free) if shared_by(tile, operands) <= free)


def _shapes(operands: Operands, free: int) -> Iterator[Tile]:
    """The tiles, whether they fit or not; the first with as many boxes as fit in `free` bytes."""
    x, residual = operands.x, operands.epilogue.residual
    size = x.element_size()
    widest = min(128 // size, max(32 // size, next_power_of_two(x.shape[3])))
    for depth in (widest, widest // 2):
        held = Tile(16, 16, 64, depth, 0, 0, 2, 4)
        boxes = (free - shared_by(held, operands)) // (18 * 16 * depth * size)
        if depth * size >= 32 and boxes >= 2:
            yield replace(held, boxes=min(boxes, 8))
            break
    for boxes, taps in ((3, 6), (4, 4), (3, 4)):
        if taps == 6 or (boxes == 3) == (residual is not None):
            yield Tile(16, 16, 64, widest, boxes, taps, 2, 4)
    if operands.weight.shape[1] > 64:
        yield Tile(16, 16, 128, widest, 3 if residual is None else 2, 4, 1, 8)
    yield Tile(8, 16, 64, widest, 4, 8, 1, 4)


def shared_by(tile: Tile, operands: Operands) -> int:
    """Bytes of shared memory that `conv3x3_gluon` allocates for a tile, but for `RESERVED_BYTES`."""
    x, weight, epilogue, outputs = operands
    pixels, stored = tile.rows * tile.cols, tile.out // operands.at_a_time
    boxes = tile.boxes * (tile.rows + 2) * tile.cols
    taps = tile.taps or len(weight) * -(-x.shape[3] // tile.depth)
    written, residual = (outputs.pooled if outputs.out is None else outputs.out), epilogue.residual
    types = [part.element_size() for part in (written, residual) if part is not None]
    quarters = 2 if residual is None else 4
    staged = tile.groups * quarters * pixels // 4 * stored * max(types, default=0)
    head = 0 if epilogue.head is None else (tile.groups * pixels // 2 + 8) * tile.out * 2
    return (boxes + taps * tile.out) * tile.depth * x.element_size() + staged + head
