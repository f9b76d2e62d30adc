"""The tiles of `conv3x3_gluon` that are worth measuring."""

from collections.abc import Iterator

from torch import Tensor

from pipeline.kernels.common.epilogue import Epilogue
from pipeline.kernels.common.nhwc import next_power_of_two, shared_bytes
from pipeline.kernels.conv3x3.conv3x3_gluon import Tile

RESERVED_BYTES = 2048  # of what a program may have: barriers and a head's weights


def candidates(x: Tensor, weight: Tensor, epilogue: Epilogue) -> Iterator[Tile]:
    """The tiles worth measuring for x [N, H, W, in] and weight [9, 27 or 36, out, in], the likeliest first.

    A residual takes four quarters of a tile for each group of warps, an output alone two: boxes and weights then have
    to do with less. What a volume's convolution stores is reckoned as fp16, and what a norm follows.
    """
    size, residual, (taps_of_all, outer, _) = x.element_size(), epilogue.residual, weight.shape
    widest = min(128 // size, max(32 // size, next_power_of_two(x.shape[3])))
    stored = max(size, 2 if epilogue.head or epilogue.statistics or taps_of_all > 9 else 0)
    staged = 2 * 64 * (32 if taps_of_all == 36 else 64) * stored
    if residual is not None:
        staged = 4 * 64 * 64 * max(stored, residual.element_size())
    free = shared_bytes(x.device) - RESERVED_BYTES - 2 * staged
    for depth in (widest, widest // 2):
        held = taps_of_all * -(-x.shape[3] // depth) * 64 * depth * size
        boxes = (free - held) // (18 * 16 * depth * size)
        if depth * size >= 32 and boxes >= 2:
            yield Tile(16, 16, 64, depth, min(boxes, 8), 0, 2, 4)
            break
    box, tap = 18 * 16 * widest * size, 64 * widest * size
    for boxes, taps in ((3, 6), (4, 4), (3, 4)):
        if boxes * box + taps * tap <= free and (taps == 6 or (boxes == 3) == (residual is not None)):
            yield Tile(16, 16, 64, widest, boxes, taps, 2, 4)
    if outer > 64:
        yield Tile(16, 16, 128, widest, 3 if residual is None else 2, 4, 1, 8)
    yield Tile(8, 16, 64, widest, 4, 8, 1, 4)
