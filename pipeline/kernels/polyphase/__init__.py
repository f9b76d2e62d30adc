"""Convolutions whose taps fall into phases: up-sampling composed with the convolution after it, and a stride of 2.

`polyphase_compose` makes the weights, `pack` rounds them, `polyphase` runs them. Two kernels do it: `polyphase_triton`,
and `polyphase_gluon`, which is faster. The tile says which.
"""

from collections.abc import Iterator

from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.kernel_op import LayerDescription
from pipeline.kernels.common.nhwc import interpreted
from pipeline.kernels.polyphase import polyphase_gluon, polyphase_triton
from pipeline.kernels.polyphase.polyphase_compose import (
    Composition,
    compose_nearest,
    compose_transposed,
    strided_alone,
    transposed_alone,
)
from pipeline.kernels.polyphase.polyphase_operands import (
    WINDOW,
    Operands,
    Packed,
    Scales,
    check_operands,
    evaluate,
    pack,
    reference,
)

__all__ = [
    "Composition",
    "Operands",
    "Packed",
    "Scales",
    "Tile",
    "accepts_strided",
    "candidates",
    "compose_nearest",
    "compose_transposed",
    "evaluate",
    "flops",
    "pack",
    "polyphase",
    "reference",
    "strided_alone",
    "transposed_alone",
]

Tile = polyphase_triton.Tile | polyphase_gluon.Tile


def polyphase(operands: Operands, tile: Tile | None = None) -> None:
    """Store the phases, or the strided convolution, of `operands` through their epilogue.

    Args:
        operands: as `Operands` says.
        tile: one of `candidates`; the first of them without.

    Raises:
        ValueError: a shape, dtype or stride is not as it says, or the tile is of a kernel that has no such window.
    """
    check_operands(operands)
    tile = tile or next(candidates(operands))
    if isinstance(tile, polyphase_gluon.Tile):
        if operands.window != WINDOW:
            raise ValueError(f"{tile} is of a kernel for windows of {WINDOW}, got {operands.window}")
        polyphase_gluon.launch(operands, tile)
    else:
        polyphase_triton.launch(operands, tile)


def candidates(operands: Operands) -> Iterator[Tile]:
    """Yield tiles worth measuring for these operands, likeliest first."""
    if operands.window == WINDOW and reaching_views_barred() is None and not interpreted():
        yield from polyphase_gluon.candidates(operands)
    else:
        yield from polyphase_triton.candidates(operands)


def accepts_strided(layer: LayerDescription, window: int = WINDOW) -> bool:
    """Return whether the kernels compute a layer as a convolution of stride 2, padding 1, on even height and width."""
    even = all(size % 2 == 0 for size in layer.in_size)
    return layer.kind == "conv2d" and layer.is_square(window, 2, 1) and layer.suits_bulk_copies and even


def flops(operands: Operands) -> float:
    """Operations of these operands, 2 for a multiply-add."""
    batch, height, width = operands.grid
    of_small = 2.25 if operands.window_of_3 else 4
    taps = [of_small if map_ is operands.small else operands.window**2 for map_, _ in operands.sources]
    products = sum(count * map_.shape[3] for count, (map_, _) in zip(taps, operands.sources, strict=True))
    return 2.0 * batch * height * width * (1 if operands.strided else 4) * operands.outer * products
