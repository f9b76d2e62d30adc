"""What the kernels of the phases compute, in plain PyTorch, in whatever precision it is given."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.epilogue import store_reference
from pipeline.kernels.polyphase.polyphase_compose import PHASES, Composition
from pipeline.kernels.polyphase.polyphase_operands import Operands


def phases_of(small: Tensor, taps: Tensor) -> Tensor:
    """The four phases by 2×2 taps [16, out, in] of small [N, in, h, w], put together as [N, out, 2 h, 2 w]."""
    batch, inner, height, width = small.shape
    out = small.new_empty(batch, taps.shape[1], height, 2, width, 2)
    for phase, (a, b) in enumerate(PHASES):
        window = taps[4 * phase : 4 * phase + 4].permute(1, 2, 0).reshape(-1, inner, 2, 2)
        padded = functional.pad(small, (1 - b, b, 1 - a, a))
        out[:, :, :, a, :, b] = functional.conv2d(padded, window)
    return out.reshape(batch, -1, 2 * height, 2 * width)


def window_of(full: Tensor, taps: Tensor, stride: int = 1) -> Tensor:
    """The 3×3 or 4×4 convolution, padding 1, by taps [9 or 16, out, in] of full [N, in, H, W]."""
    window = taps.permute(1, 2, 0).unflatten(2, [math.isqrt(len(taps))] * 2)
    return functional.conv2d(full, window, stride=stride, padding=1)


def strided_of_volumes(full: Tensor, taps: Tensor, slices: int, step: int) -> Tensor:
    """The 3×3×3 convolution, padding 1, by taps [27, out, in] of volumes [N, in, slices · H, W], as those.

    Its stride is 2 within slices, and `step` from slice to slice.
    """
    window = taps.permute(1, 2, 0).unflatten(2, (3, 3, 3))
    return functional.conv3d(full.unflatten(2, (slices, -1)), window, stride=(step, 2, 2), padding=1).flatten(2, 3)


def at_border(border: Tensor, height: int, width: int) -> Tensor:
    """What border [3, 3, out] adds to each pixel of an output of this size, at least 2×2, as [out, height, width]."""
    lines = [(torch.arange(size, device=border.device), size - 1) for size in (height, width)]
    rows, columns = (1 + (line == last).long() - (line == 0).long() for line, last in lines)
    return border[rows[:, None], columns].permute(2, 0, 1)


def evaluate(composition: Composition, small: Tensor | None, full: Tensor | None = None) -> Tensor:
    """The linear map of a composition in its own precision: small [N, in, h, w], full [N, skip, 2 h, 2 w]."""
    y = composition.bias[:, None, None]
    if small is not None and composition.small is not None:
        y = y + phases_of(small, composition.small)
    if full is not None and composition.full is not None:
        y = y + window_of(full, composition.full, 2 if small is None else 1)
    return y if composition.border is None else y + at_border(composition.border, *y.shape[2:])


def reference(operands: Operands) -> None:
    """What `polyphase.polyphase` stores of its operands, computed in fp32 on any device."""
    epilogue, sums = operands.epilogue, torch.zeros(())
    small, full = operands.small, operands.full
    if small is not None and operands.small_weight is not None:
        sums = phases_of(small.float().permute(0, 3, 1, 2), operands.small_weight.float())
    if full is not None and operands.full_weight is not None:
        seen, taps = full.float().permute(0, 3, 1, 2), operands.full_weight.float()
        if operands.deep == 3:
            sums = strided_of_volumes(seen, taps, operands.epilogue.slices, operands.step)
        else:
            window = window_of(seen, taps, 2 if operands.strided else 1)
            sums = window if operands.strided else sums + window
    sums = sums.permute(0, 2, 3, 1)
    if epilogue.scale is not None:
        sums = sums * epilogue.scale
    if epilogue.bias is not None:
        sums = sums + epilogue.bias
    if operands.border is not None:
        sums = sums + at_border(operands.border, *sums.shape[1:3]).permute(1, 2, 0)
    store_reference(epilogue.activation(sums), epilogue, operands.outputs)
