"""The layers that the kernels of the phases run: strided and transposed convolutions, and one after an up-sampling."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels import conv3x3x3
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import (
    Ends,
    KernelOp,
    LayerDescription,
    LibraryParameters,
    SecondSource,
    flops_of,
)
from pipeline.kernels.common.library import convolution, ended
from pipeline.kernels.conv3x3 import pack as window_taps
from pipeline.kernels.polyphase import (
    accepts_strided,
    candidates,
    polyphase,
    polyphase_gluon,
    polyphase_triton,
    reference,
)
from pipeline.kernels.polyphase.polyphase_operands import FOLDS, WIDER, WINDOW, Operands, at_border

TILES = (polyphase_triton.Tile, polyphase_gluon.Tile)
PHASE_TAPS = 16  # four phases of 2×2 taps


NO_SECOND = SecondSource()


def operands(
    x: Tensor,
    weight: Tensor,
    epilogue: Epilogue,
    outputs: Outputs,
    second: SecondSource = NO_SECOND,
    *,
    window_of_3: bool = False,
    step: int = 2,
    window: int = WINDOW,
) -> Operands:
    """Return the kernels' operands: x is the full map if the weight has a window's taps, the small one if four phases'.

    Args:
        x: [N, H, W, in] or [N, h, w, in].
        weight: [9, out, in], of volumes [27, out, in], or [16, out, in]: of four phases, or of a window of 4.
        epilogue: scale, bias, activation and statistics.
        outputs: out.
        second: of an up-sampling beside a skip.
        window_of_3: as `Operands` has it.
        step: as `Operands` has it.
        window: as `Operands` has it.
    """
    if weight.shape[0] != PHASE_TAPS or window == WIDER:
        return Operands(epilogue, outputs, full=x, full_weight=weight, step=step, window=window)
    return Operands(epilogue, outputs, x, weight, *second, window_of_3)


def _strided(x: Tensor, parameters: LibraryParameters, ends: Ends) -> Tensor:
    x = x.to(parameters.weight.dtype, memory_format=torch.channels_last)
    return convolution(x, parameters, ends, stride=(2, 2), padding=(1, 1))


def _strided_volumes(step: int) -> Callable[[Tensor, LibraryParameters, Ends], Tensor]:
    def library(x: Tensor, parameters: LibraryParameters, ends: Ends) -> Tensor:
        x = x.to(parameters.weight.dtype, memory_format=torch.channels_last)
        volumes = x.unflatten(2, (ends.slices, -1))
        return ended(functional.conv3d(volumes, *parameters, stride=(step, 2, 2), padding=1).flatten(2, 3), ends)

    return library


def _transposed(output_padding: int) -> Callable[[Tensor, LibraryParameters, Ends], Tensor]:
    def library(x: Tensor, parameters: LibraryParameters, ends: Ends) -> Tensor:
        x = x.to(parameters.weight.dtype, memory_format=torch.channels_last)
        grown = functional.conv_transpose2d(x, *parameters, stride=2, padding=1, output_padding=output_padding)
        return ended(grown, ends)

    return library


def phase_taps(weight: Tensor) -> Tensor:
    """Return a transposed convolution's weight [in, out, k, k], k = 3 or 4, padding 1, as [16, out, in].

    What `transposed_alone` picks, without its loops, so that a graph may do it, too: tap i of phase a reads row 3 − a −
    2 i of a window of 4, and of one of 3 the fourth is zeros.
    """
    inner, outer, window, _ = weight.shape
    rows = functional.pad(weight, (0, 4 - window, 0, 4 - window)).flip(2, 3)
    return rows.reshape(inner, outer, 2, 2, 2, 2).permute(3, 5, 2, 4, 1, 0).reshape(16, outer, inner).contiguous()


def _accepts_transposed(window: int, output_padding: int) -> Callable[[LayerDescription], bool]:
    def accepts(layer: LayerDescription) -> bool:
        geometry = (layer.window, layer.stride, layer.padding, layer.dilation, layer.groups)
        known = ((window, window), (2, 2), (1, 1), (1, 1), 1)
        grows = layer.output_padding == (output_padding, output_padding)
        return layer.kind == "conv_transpose2d" and geometry == known and grows and layer.suits_bulk_copies

    return accepts


def _op(
    name: str,
    accepts: Callable[[LayerDescription], bool],
    library: Callable[[Tensor, LibraryParameters, Ends], Tensor],
    *,
    window: int,
    transposed: bool,
) -> KernelOp:
    """Return a kernel's description, for one form of the operands."""
    given = partial(operands, window_of_3=transposed and window == 3, window=WINDOW if transposed else window)

    def flops(shape: tuple[int, ...], outer: int) -> float:
        batch, inner, height, width = shape
        return 2.0 * window**2 * batch * height * width * inner * outer / (1 if transposed else 4)

    return KernelOp(
        name=name,
        accepts=accepts,
        reference=lambda *parts: reference(given(*parts)),
        launch=lambda *parts: polyphase(given(*parts[:5]), *parts[5:]),
        candidates=lambda *parts: candidates(given(*parts)),
        library=library,
        flops=flops,
        tile_types=TILES if transposed or window == WINDOW else TILES[:1],
        pack=phase_taps if transposed else window_taps,
        weight_shape=lambda inner, outer: (
            (inner, outer, window, window) if transposed else (outer, inner, window, window)
        ),
        out_axis=1,
        tap_axis=None if transposed else 0,
        folds=FOLDS,
        takes_second=True,
        phases=2 if transposed else 1,
        growth=2 if transposed else 0.5,
    )


def _of_volumes(name: str, step: int) -> KernelOp:
    """Return the description of a 3×3×3 convolution with stride 2 within slices and `step` across slices."""
    given = partial(operands, step=step)
    return KernelOp(
        name=name,
        accepts=None,
        reference=lambda *parts: reference(given(*parts)),
        launch=lambda *parts: polyphase(given(*parts[:5]), *parts[5:]),
        candidates=lambda *parts: candidates(given(*parts)),
        library=_strided_volumes(step),
        flops=lambda shape, outer: flops_of(27)(shape, outer) / (4 * step),
        tile_types=TILES,
        pack=conv3x3x3.pack,
        weight_shape=lambda inner, outer: (outer, inner, 3, 3, 3),
        out_axis=1,
        tap_axis=0,
        folds=FOLDS,
        takes_second=True,
        growth=0.5,
        growth_deep=1 / step,
    )


STRIDED_VOLUMES: KernelOp = _of_volumes("conv3x3x3_strided", 2)
STRIDED_IN_SLICES: KernelOp = _of_volumes("conv3x3x3_strided_in_slices", 1)
STRIDED = _op("conv3x3_strided", accepts_strided, _strided, window=3, transposed=False)
STRIDED_4X4 = _op("conv4x4_strided", partial(accepts_strided, window=WIDER), _strided, window=WIDER, transposed=False)
TRANSPOSED_3X3 = _op("transposed3x3", _accepts_transposed(3, 1), _transposed(1), window=3, transposed=True)
TRANSPOSED_4X4 = _op("transposed4x4", _accepts_transposed(4, 0), _transposed(0), window=4, transposed=True)


def one_window(taps: Tensor) -> Tensor:
    """Taps [16, out, in] of four phases as the weight [4 · out, in, 2, 2] of one convolution, phase by phase."""
    _, outer, inner = taps.shape
    return taps.reshape(4, 2, 2, outer, inner).permute(0, 3, 4, 1, 2).reshape(4 * outer, inner, 2, 2)


def _by_phases(x: Tensor, parameters: LibraryParameters, ends: Ends) -> Tensor:
    """Return the phases of x [N, in, h, w], put together as [N, out, 2 h, 2 w], and what follows them.

    With a padding of 1 the convolution gives a row and a column more than x has, and phase (a, b) is what begins in row
    a and column b. What picks them is views, so that Inductor interleaves them in the kernel of what follows.

    Args:
        x: any dtype; cast to the weight's.
        parameters: the weight as of `one_window`, and a bias [out], or [3, 3, out] of `at_border`'s classes of pixels.
        ends: what follows.
    """
    (weight, bias), (batch, _, height, width) = parameters, x.shape
    seen = functional.conv2d(x.to(weight.dtype, memory_format=torch.channels_last), weight, padding=1)
    begins = seen.unflatten(1, (2, 2, -1)).unfold(4, height, 1).unfold(5, width, 1)  # [N, a, b, out, row, column, h, w]
    phases = begins.diagonal(0, 1, 4).diagonal(0, 1, 3)  # [N, out, h, w, a, b]
    y = phases.permute(0, 2, 4, 3, 5, 1).reshape(batch, 2 * height, 2 * width, -1).permute(0, 3, 1, 2)
    return ended(y + (at_border(bias, *y.shape[2:]) if bias.dim() > 1 else bias[:, None, None]), ends)


UPSAMPLED: KernelOp = KernelOp(
    name="upsampled_conv3x3",
    accepts=None,
    reference=lambda *parts: reference(operands(*parts)),
    launch=lambda *parts: polyphase(operands(*parts[:5]), *parts[5:]),
    candidates=lambda *parts: candidates(operands(*parts)),
    library=_by_phases,
    flops=flops_of(PHASE_TAPS),
    tile_types=TILES,
    out_axis=1,
    folds=FOLDS,
    takes_second=True,
    phases=2,
    growth=2,
)
