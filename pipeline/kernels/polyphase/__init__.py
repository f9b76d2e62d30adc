"""Convolutions whose taps fall into phases: up-sampling composed with the convolution after it, and a stride of 2.

`polyphase_compose` makes the weights, `polyphase` runs them. Three kernels do it, of which the tile names one:
`polyphase_triton`; `polyphase_gluon`, which is faster; and for few channels `polyphase_narrow`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor

from pipeline.kernels.common import kernel_op
from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import KernelOp, LayerDescription, SecondSource
from pipeline.kernels.common.nhwc import interpreted
from pipeline.kernels.conv3x3 import pack as window_taps
from pipeline.kernels.polyphase import polyphase_gluon, polyphase_narrow, polyphase_triton
from pipeline.kernels.polyphase.polyphase_compose import phase_taps
from pipeline.kernels.polyphase.polyphase_operands import FOLDS, WIDER, WINDOW, Operands, check_operands, reference

Tile = polyphase_triton.Tile | polyphase_gluon.Tile | polyphase_narrow.Tile
LAUNCHES: dict[type[Tile], Callable[..., None]] = {
    kernel.Tile: kernel.launch for kernel in (polyphase_triton, polyphase_gluon, polyphase_narrow)
}
TILES = tuple(LAUNCHES)
PHASE_TAPS = 16  # four phases of 2×2 taps
NO_SECOND = SecondSource()


def polyphase(operands: Operands, tile: Tile | None = None) -> None:
    """Store the phases, or the strided convolution, of checked `operands` through their epilogue."""
    check_operands(operands)
    tile = tile or next(candidates(operands))
    if operands.window != WINDOW and not isinstance(tile, polyphase_triton.Tile):
        raise ValueError(f"{tile} is of a kernel for windows of {WINDOW}, got {operands.window}")
    LAUNCHES[type(tile)](operands, tile)


def candidates(operands: Operands) -> Iterator[Tile]:
    """Yield tiles worth measuring for these operands, likeliest first."""
    if operands.window == WINDOW and reaching_views_barred() is None and not interpreted():
        yield from polyphase_narrow.candidates(operands)
        yield from polyphase_gluon.candidates(operands)
    else:
        yield from polyphase_triton.candidates(operands)


def accepts_strided(layer: LayerDescription, window: int = WINDOW) -> bool:
    """Return whether the kernels compute a layer as a convolution of stride 2, padding 1, on even height and width."""
    even = all(size % 2 == 0 for size in layer.in_size)
    return layer.kind == "conv2d" and layer.is_square(window, 2, 1) and layer.suits_bulk_copies and even


def _accepts_transposed(layer: LayerDescription, *, window: int, output_padding: int) -> bool:
    geometry = (layer.window, layer.stride, layer.padding, layer.dilation, layer.groups, layer.output_padding)
    known = ((window, window), (2, 2), (1, 1), (1, 1), 1, (output_padding, output_padding))
    return layer.kind == "conv_transpose2d" and geometry == known and layer.suits_bulk_copies


def _operands(
    x: Tensor, weight: Tensor, epilogue: Epilogue, outputs: Outputs, second: SecondSource = NO_SECOND, *,
    window_of_3: bool = False, step: int = 2, window: int = WINDOW,
) -> Operands:  # fmt: skip
    """Return the operands: x is the small map if the weight is of four phases, [16, out, in], else the full one."""
    if weight.shape[0] != PHASE_TAPS or window == WIDER:
        return Operands(epilogue, outputs, full=x, full_weight=weight, step=step, window=window)
    return Operands(epilogue, outputs, x, weight, *second, window_of_3)


def _op(name: str, given: Callable[..., Operands], **parts: Any) -> KernelOp:
    return KernelOp(
        name=name, reference=lambda *operands: reference(given(*operands)),
        launch=lambda *operands: polyphase(given(*operands[:5]), *operands[5:]),
        candidates=lambda *operands: candidates(given(*operands)), folds=FOLDS, takes_second=True,
        **{"tile_types": TILES, **parts},
    )  # fmt: skip


def _strided(name: str, window: int) -> KernelOp:
    return _op(
        name, partial(_operands, window=window), accepts=partial(accepts_strided, window=window),
        library=partial(kernel_op.convolution, stride=2), taps=window**2 / 4, pack=window_taps,
        tile_types=TILES if window == WINDOW else TILES[:1], tap_axis=0, growth=0.5,
    )  # fmt: skip


def _of_volumes(name: str, step: int) -> KernelOp:
    """Return the description of a 3×3×3 convolution with stride 2 within slices and `step` across slices."""
    return _op(
        name, partial(_operands, step=step), accepts=None, taps=27 / (4 * step), pack=window_taps, tap_axis=0,
        library=partial(kernel_op.volume_convolution, stride=(step, 2, 2)), growth=0.5, growth_deep=1 / step,
    )  # fmt: skip


def _transposed(name: str, window: int) -> KernelOp:
    output_padding = 4 - window
    return _op(
        name, partial(_operands, window_of_3=window == 3),
        accepts=partial(_accepts_transposed, window=window, output_padding=output_padding),
        library=partial(kernel_op.transposed_convolution, padding=1, output_padding=output_padding), taps=window**2,
        pack=phase_taps, phases=2, growth=2,
    )  # fmt: skip


def _by_its_layer(*_: object) -> Tensor:
    raise NotImplementedError("the layer computes it by an up-sampling and a convolution")


STRIDED_VOLUMES = _of_volumes("conv3x3x3_strided", 2)
STRIDED_IN_SLICES = _of_volumes("conv3x3x3_strided_in_slices", 1)
STRIDED = _strided("conv3x3_strided", WINDOW)
STRIDED_4X4 = _strided("conv4x4_strided", WIDER)
TRANSPOSED_3X3 = _transposed("transposed3x3", 3)
TRANSPOSED_4X4 = _transposed("transposed4x4", 4)
UPSAMPLED = _op(
    "upsampled_conv3x3", _operands, accepts=None, library=_by_its_layer, taps=PHASE_TAPS, phases=2, growth=2
)
