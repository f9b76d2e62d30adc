"""What TMA moves for `polyphase_gluon`: the boxes of both maps, of their taps, and of what is stored."""

from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from pipeline.kernels.common.tma import boxes_of, weight_boxes_of
from pipeline.kernels.polyphase.polyphase_operands import Operands, spread_of

COLS = 16  # pixels of a row of a tile: two of the eight rows over which TMA's swizzle repeats


def pairs_are_rows(out: Tensor, spread: int) -> bool:
    """Whether the 64 rows of a product are what lies side by side in an output [N, H, W, out]: two pixels' channels.

    TMA then stores half as many rows, and it is rows that it takes time for.
    """
    return spread == 2 and out.shape[3] == out.stride(2) == 64 // spread


def small_of(operands: Operands, rows: int, depth: int, paired: bool) -> list[TensorDescriptor]:
    """Boxes of the small map, a tile's rows and its last two, `depth` channels of them, and of its taps; or none."""
    small, weight = operands.small, operands.small_weight
    if small is None or weight is None:
        return []
    boxed = [rows * COLS, depth]
    pixels = [boxes_of(small, [1, count, COLS, depth], boxed) for count in (rows, 2)]
    return [*pixels, weight_boxes_of(weight, 64 // spread_of(operands), boxed, paired)]


def planes_of(operands: Operands, rows: int, depth: int, paired: bool) -> list[TensorDescriptor]:
    """Boxes of the full map's even rows [N, h, w, 2, skip], of the odd ones, a tile's and its last; of its taps."""
    full, weight = operands.images, operands.full_weight
    if full is None or weight is None:
        return []
    boxed = [rows * COLS, depth]
    planes = [full[:, half::2].unflatten(2, (-1, 2)) for half in range(2)]
    pixels = [boxes_of(plane, [1, count, COLS, 1, depth], boxed) for plane in planes for count in (rows, 1)]
    return [*pixels, weight_boxes_of(weight, 64 // spread_of(operands), boxed, paired)]
