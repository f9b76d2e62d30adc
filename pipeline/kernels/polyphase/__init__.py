"""Convolutions whose taps fall into phases: up-sampling composed with the convolution after it, and a stride of 2.

Three kernels do it, of which the tile names one: `polyphase_triton`; `polyphase_gluon`, which is faster; and for few
channels `polyphase_narrow`. Their weights are one linear map, composed in float64: four phases of 2×2 taps of the small
map. Row 2 y + a of the large map is phase a of row y. Phase 0 reads the small map's rows y − 1 and y, phase 1 rows y
and y + 1; columns alike. Tap r of a 3×3 window reads row 2 y + a + r − 1 of the large map, hence row
y + ⌊(a + r − 1) / 2⌋ of the small one, in phase (a + r − 1) mod 2. Nothing is rounded before `pack`, which rounds once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common import kernel_op
from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import KernelOp, LayerDescription, Packed, SecondSource
from pipeline.kernels.common.nhwc import FP8_MAX, in_fp8, interpreted
from pipeline.kernels.conv3x3 import pack as window_taps
from pipeline.kernels.polyphase import polyphase_gluon, polyphase_narrow, polyphase_triton
from pipeline.kernels.polyphase.polyphase_triton import PHASES, WIDER, WINDOW, Operands, check_operands, reference

Tile = polyphase_triton.Tile | polyphase_gluon.Tile | polyphase_narrow.Tile
LAUNCHES: dict[type[Tile], Callable[..., None]] = {
    kernel.Tile: kernel.launch for kernel in (polyphase_triton, polyphase_gluon, polyphase_narrow)
}
TILES = tuple(LAUNCHES)
PHASE_TAPS = 16  # four phases of 2×2 taps
NO_SECOND = SecondSource()


@dataclass(frozen=True)
class Composition:
    """One linear map in float64, as `pack` takes it."""

    # [16, out, in]: tap 8 a + 4 b + 2 i + j of phase (a, b) reads row y + a + i − 1 and column x + b + j − 1
    small: Tensor
    full: Tensor | None  # [9, out, skip] taps of the full-resolution map, row by row; None without one
    bias: Tensor  # [out], of pixels off the border
    # [3, 3, out], added to the bias in the first, inner and last rows × columns; None for nothing
    border: Tensor | None = None


def compose_transposed(up: tuple[Tensor, Tensor | None], convolution: tuple[Tensor, Tensor]) -> Composition:
    """Compose a 2×2 transposed convolution of stride 2 with a 3×3 convolution (padding 1) of it beside a skip.

    Weights are [in, mid, 2, 2] and [out, skip + mid, 3, 3], biases [mid] and [out].
    """
    up_weight, up_bias = up
    of_up, full = _sources(convolution[0], up_weight.shape[1])
    phases = up_weight.double()
    small = _phases_of(lambda r, s, row, column: of_up[:, :, r, s] @ phases[:, :, row, column].T)
    bias, border = convolution[1].double(), None
    if up_bias is not None:
        inner, border = _through_padding(of_up, up_bias.double())
        bias = bias + inner
    return Composition(small, full, bias, border)


def compose_nearest(convolution: tuple[Tensor, Tensor], channels: int) -> Composition:
    """Compose nearest up-sampling by 2 of `channels` with a 3×3 convolution of it beside a skip, padding 1."""
    of_up, full = _sources(convolution[0], channels)
    return Composition(_phases_of(lambda r, s, *_: of_up[:, :, r, s]), full, convolution[1].double())


def _phases_of(tap: Callable[[int, int, int, int], Tensor]) -> Tensor:
    """Return the taps [16, out, in] of the phases: sums of those of the window, by `tap` of its place and the phase."""
    taps: list[list[Tensor]] = [[] for _ in range(16)]
    for phase, (a, b) in enumerate(PHASES):
        for r, (i, row) in enumerate(_seen(a)):
            for s, (j, column) in enumerate(_seen(b)):
                taps[4 * phase + 2 * i + j].append(tap(r, s, row, column))
    return torch.stack([torch.stack(parts).sum(0) for parts in taps])


def _seen(phase: int) -> list[tuple[int, int]]:
    """For each tap of a row or column of the window: which of the phase's two taps reads it, and from which phase."""
    places = [phase + tap - 1 for tap in range(3)]
    return [(place // 2 + 1 - phase, place % 2) for place in places]


def _sources(weight: Tensor, channels: int) -> tuple[Tensor, Tensor | None]:
    """Return the part of a 3×3 weight on the `channels` of the up-sampled map, and the skip's as [9, out, skip]."""
    if weight.shape[1] < channels:
        raise ValueError(f"the convolution reads {weight.shape[1]} channels, and {channels} are up-sampled")
    skip = weight.shape[1] - channels
    of_skip, of_up = weight.double().split([skip, channels], dim=1)
    return of_up, window_taps(of_skip) if skip else None


def _through_padding(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Pass a bias [mid] through a 3×3 weight [out, mid, 3, 3] with zero padding: inner [out], border [3, 3, out]."""
    seen = torch.einsum("ours,u->rso", weight, bias)
    inside = (slice(1, 3), slice(0, 3), slice(0, 2))  # the taps that lie in the map, for first, inner and last
    inner = seen.sum((0, 1))
    classes = [[seen[rows, columns].sum((0, 1)) - inner for columns in inside] for rows in inside]
    classes[1][1] = torch.zeros_like(inner)
    return inner, torch.stack([torch.stack(row) for row in classes])


def pack(
    composition: Composition, dtype: torch.dtype, in_scales: tuple[float, float] = (1.0, 1.0), out_scale: float = 1.0,
    rounding: Callable[[Tensor, int], Tensor] = lambda taps, _: in_fp8(taps),
) -> Packed:  # fmt: skip
    """Round a composition's weights to `dtype`, float16 or float8_e4m3fn, for maps that are stored with these scales.

    The scales are those of the small and the full map, and of the output. The largest weight of an output channel
    becomes e4m3's largest value. `rounding` takes scaled taps [..., taps, out, in] and their axis.
    """
    small = composition.small * in_scales[0]
    full = None if composition.full is None else composition.full * in_scales[1]
    bias = (composition.bias / out_scale).float().contiguous()
    border = None if composition.border is None else (composition.border / out_scale).float().contiguous()
    if dtype != torch.float8_e4m3fn:
        scale = None if out_scale == 1.0 else torch.full_like(bias, 1 / out_scale)
        return Packed(small.to(dtype), scale, bias, None if full is None else full.to(dtype), border)
    largest = torch.stack([taps.abs().amax((0, 2)) for taps in (small, full) if taps is not None]).amax(0)
    by_channel = largest.clamp_min(1e-12) / FP8_MAX
    scale = (by_channel / out_scale).float().contiguous()
    phases = (small / by_channel[:, None]).float().unflatten(0, (4, 4))
    small = rounding(phases, 1).flatten(0, 1).contiguous()
    if full is not None:
        full = rounding((full / by_channel[:, None]).float(), 0).contiguous()
    return Packed(small, scale, bias, full, border)


def phase_taps(weight: Tensor) -> Tensor:
    """Return a transposed convolution's weight [in, out, k, k], k = 3 or 4, padding 1, as [16, out, in].

    Tap i of phase a reads row 3 − a − 2 i of a window of 4, the last of 3 zeros. A graph may do it: it has no loops.
    """
    inner, outer, window, _ = weight.shape
    rows = functional.pad(weight, (0, 4 - window, 0, 4 - window)).flip(2, 3)
    return rows.reshape(inner, outer, 2, 2, 2, 2).permute(3, 5, 2, 4, 1, 0).reshape(16, outer, inner).contiguous()


def polyphase(operands: Operands, tile: Tile) -> None:
    """Store the phases, or the strided convolution, of checked `operands` through their epilogue."""
    check_operands(operands)
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
        candidates=lambda *operands: candidates(given(*operands)), folds=polyphase_triton.FOLDS, takes_second=True,
        **{"tile_types": TILES, **parts},
    )  # fmt: skip


def _strided(name: str, window: int) -> KernelOp:
    def accepts(layer: LayerDescription) -> bool:
        even = all(size % 2 == 0 for size in layer.in_size)
        return layer.kind == "conv2d" and layer.is_square(window, 2, 1) and layer.suits_bulk_copies and even

    return _op(
        name, partial(_operands, window=window), accepts=accepts,
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

    def accepts(layer: LayerDescription) -> bool:
        square = layer.is_square(window, 2, 1, output_padding)
        return layer.kind == "conv_transpose2d" and square and layer.suits_bulk_copies

    return _op(
        name, partial(_operands, window_of_3=window == 3), accepts=accepts,
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
