"""A convolution of volumes as a layer, between values whose slices lie one below the other."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pipeline.compiler.kernel_layer import KernelLayer, Packed
from pipeline.kernels import conv3x3x3
from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.kernel_op import Ends, KernelOp, LibraryParameters
from pipeline.kernels.conv3x3.conv3x3_operands import STACKED


class VolumeLayer(KernelLayer):
    """The layer between matching and lowering; its input is [N, in, D · H, W], and its weight has five axes."""

    def __init__(self, name: str, op: KernelOp, weight: Tensor, bias: Tensor, slices: int) -> None:
        super().__init__(name, op, weight, bias)
        self.slices = slices

    def sums_by_library(
        self, parameters: Sequence[LibraryParameters], inputs: Sequence[Tensor], residual: Tensor | None
    ) -> Tensor:
        """The output [N, out, D' · H', W'] of the input [N, in, D · H, W], residual and activation included."""
        return self.op.library(inputs[0], parameters[0], Ends(self.activation, self.slopes, residual, self.slices))

    def packed(self, dtype: torch.dtype, in_scales: Sequence[float] | None, out_scale: float, channels: int) -> Packed:
        """The parts as the kernel reads them, for two slices at a time where that pays; the arguments are a layer's."""
        parts = super().packed(dtype, in_scales, out_scale, channels)
        assert parts.weight is not None
        few = parts.weight.shape[1] <= STACKED and self.slices % 2 == 0
        if self.op is not conv3x3x3.OP or not few or reaching_views_barred():
            return parts
        return parts._replace(weight=conv3x3x3.stacked(parts.weight))
