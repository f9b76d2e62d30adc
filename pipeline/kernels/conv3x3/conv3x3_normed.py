"""The 3×3 convolution of few channels that applies an instance or group norm, and the ReLU after it, to what it reads.

The norm's own pass, which reads and writes the whole map, is gone; its statistics are merged in a kernel before.
"""

import torch
from torch import Tensor

from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.norm_on_load import NormOnLoad
from pipeline.kernels.conv3x3 import conv3x3_narrow
from pipeline.kernels.conv3x3 import reference as plain_reference
from pipeline.kernels.conv3x3.conv3x3_operands import Operands, check_operands
from pipeline.kernels.merged_statistics import check_norm, merge_statistics
from pipeline.kernels.norm_pass import NormPass
from pipeline.kernels.norm_pass import reference as pass_by_torch

SLOPES = {"none": 1.0, "relu": 0.0}  # of max(y, slope · y); a leaky ReLU's is its own


def slope_of(activation: Activation) -> float | None:
    """Return the slope for which max(y, slope · y) is the activation; None if no slope from 0 to 1 is."""
    slope = SLOPES.get(activation.name, activation.slope if activation.name == "leaky_relu" else -1.0)
    return slope if 0 <= slope <= 1 else None


def normed_conv3x3(operands: Operands, counted: Tensor, how: NormPass, tile: conv3x3_narrow.Tile) -> None:
    """Write the convolution of activation(norm(x)) into the outputs.

    Args:
        operands: x [N, H, W, in] fp16, weight [9, out, in]; an epilogue that `conv3x3_narrow.suits`.
        counted: statistics [N, blocks, 2, in] of x before it was rounded.
        how: the norm and an activation with `slope_of`.
        tile: how the work is cut.

    Raises:
        ValueError: an operand isn't as above, or the kernels have no such groups.
    """
    check_operands(operands)
    _, height, width, _ = operands.x.shape
    slope, (weight, bias, eps, group) = slope_of(how.activation), how.norm
    if operands.x.dtype != torch.float16 or slope is None or eps is None or how.scale != 1.0:
        given = f"{operands.x.dtype}, {how.activation}"
        raise ValueError(f"x must be float16, after a norm with eps and a ReLU with a slope from 0 to 1, got {given}")
    check_norm(counted, (height, width), how.phases, how.norm)
    mean, variance = merge_statistics(counted, height, width, how.phases, group_width=group, dependent=True)
    conv3x3_narrow.launch(operands, tile, NormOnLoad(mean, variance, weight, bias, eps, slope))


def reference(operands: Operands, counted: Tensor, how: NormPass) -> None:
    """Compute `normed_conv3x3` in plain PyTorch for x [N, H, W, in]; the normalised map is rounded to fp16."""
    x = torch.empty_like(operands.x)
    pass_by_torch(operands.x, counted, how, x)
    plain_reference(x, *operands[1:])
