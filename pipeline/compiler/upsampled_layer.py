"""An up-sampling and the 3×3 convolution after it as one layer, beside what is concatenated to the up-sampled map."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.compiler.fp8_rounding import FP8, rounded_together
from pipeline.compiler.kernel_layer import KernelLayer, Packed, library_parameters
from pipeline.kernels.common.kernel_op import NO_WEIGHT, Ends, LibraryParameters, flops_of
from pipeline.kernels.common.library import ended
from pipeline.kernels.polyphase import Composition, Scales, compose_nearest, compose_transposed, pack
from pipeline.kernels.polyphase.polyphase_layers import PHASE_TAPS, UPSAMPLED, one_window


@dataclass(frozen=True)
class Upsampling:
    """What doubles height and width: a transposed convolution, or the nearest pixel.

    Attributes:
        weight: [in, mid, 2, 2], fp32; None for the nearest pixel.
        bias: [mid]; None for none.
    """

    weight: Tensor | None = None
    bias: Tensor | None = None


class UpsampledLayer(KernelLayer):
    """The layer between matching and lowering; its inputs are the small map and, where there is one, the skip.

    Attributes:
        upsampling: comes first.
        weight: of the convolution, [out, skip + mid, 3, 3], the skip's channels first.
        channels: of the small map.
    """

    def __init__(self, name: str, upsampling: Upsampling, weight: Tensor, bias: Tensor, channels: int) -> None:
        super().__init__(name, UPSAMPLED, weight, bias)
        self.upsampling, self.channels = upsampling, channels

    def pays(self, _: Sequence[int]) -> bool:
        """Whether to compose: always, as the tuner measures the kernel beside the two layers that it stands for."""
        return True

    def composition(self) -> Composition:
        """Both as one linear map, in float64."""
        assert self.weight is not None
        assert self.bias is not None
        convolution = (self.weight.double(), self.bias.double())
        if self.upsampling.weight is None:
            return compose_nearest(convolution, self.channels, up_first=False)
        return compose_transposed((self.upsampling.weight, self.upsampling.bias), convolution, up_first=False)

    def flops_per_image(self, shapes: Sequence[Sequence[int]]) -> float:
        """FLOPs of the composed layer, 2 for a multiply-add: fewer than those of the two layers that it stands for.

        Args:
            shapes: of the inputs: [N, in, h, w] of the small map, and [N, skip, 2 h, 2 w] of a skip.
        """
        assert self.bias is not None
        outer, (small, *skips) = len(self.bias), [(1, *shape[1:]) for shape in shapes]
        return UPSAMPLED.flops(small, outer) + sum(flops_of(9)(skip, outer) for skip in skips)

    def sums_by_library(
        self, parameters: Sequence[LibraryParameters], inputs: Sequence[Tensor], residual: Tensor | None
    ) -> Tensor:
        """The output [N, out, 2 h, 2 w] of the small map [N, in, h, w] and the skip [N, skip, 2 h, 2 w]."""
        own, *transposed = parameters
        dtype = own.weight.dtype
        small, *skips = (x.to(dtype, memory_format=torch.channels_last) for x in inputs)
        if transposed:
            large = functional.conv_transpose2d(small, *transposed[0], stride=2)
        else:
            large = functional.interpolate(small, scale_factor=2.0, mode="nearest")
        sums = functional.conv2d(torch.cat([*skips, large], 1), *own, padding=1)
        return ended(sums, Ends(self.activation, self.slopes, residual))

    def parameters_in(self, dtype: torch.dtype) -> list[LibraryParameters]:
        """The convolution's weight and bias in a type, and then those of a transposed convolution."""
        found = super().parameters_in(dtype)
        if self.upsampling.weight is not None:
            bias = self.upsampling.bias
            bias = self.upsampling.weight.new_zeros(self.upsampling.weight.shape[1]) if bias is None else bias
            found.append(library_parameters(self.upsampling.weight, bias, dtype))
        return found

    def packed(self, dtype: torch.dtype, in_scales: Sequence[float] | None, out_scale: float, _: int) -> Packed:
        """The parts as the kernel reads them; the arguments are those of any layer."""
        small, full = (*(in_scales or (1.0,)), 1.0)[:2]
        parts = pack(self.composition(), FP8 if in_scales else dtype, Scales(small, full, out_scale), rounded_together)
        return Packed(parts.small, parts.scale, parts.bias, parts.full, parts.border)


class LibraryPhases(UpsampledLayer):
    """The same for the library where no kernel runs: a convolution of the small map makes all phases."""

    def pays(self, shape: Sequence[int]) -> bool:
        """Whether that multiplies less than up-sampling and convolution do, of a small map [N, in, h, w]."""
        assert self.weight is not None
        _, _, height, width = shape
        outer, of_up = len(self.weight), self.weight.shape[1] - self._beside
        grown = 0 if self.upsampling.weight is None else self.channels * of_up
        apart = 4 * (grown + 9 * of_up * outer) * height * width
        return PHASE_TAPS * self.channels * outer * (height + 1) * (width + 1) < apart

    @property
    def _beside(self) -> int:
        """The channels of the skip."""
        assert self.weight is not None
        up = self.upsampling.weight
        return self.weight.shape[1] - (self.channels if up is None else up.shape[1])

    def sums_by_library(
        self, parameters: Sequence[LibraryParameters], inputs: Sequence[Tensor], residual: Tensor | None
    ) -> Tensor:
        """The output [N, out, 2 h, 2 w] of the small map [N, in, h, w] and the skip [N, skip, 2 h, 2 w]."""
        (small, *skips), (of_small, *of_skip) = inputs, parameters
        for skip, (weight, _) in zip(skips, of_skip, strict=True):
            seen = skip.to(weight.dtype, memory_format=torch.channels_last)
            window = functional.conv2d(seen, weight, padding=1)
            residual = window if residual is None else window + residual
        return self.op.library(small, of_small, Ends(self.activation, self.slopes, residual))

    def parameters_in(self, dtype: torch.dtype) -> list[LibraryParameters]:
        """The composed weight and bias in a type, as `UPSAMPLED.library` takes them, and then the skip's weight."""
        made = self.composition()
        assert made.small is not None
        assert self.weight is not None
        bias = made.bias if made.border is None else made.bias + made.border
        found = [library_parameters(one_window(made.small), bias, dtype)]
        if self._beside:
            found.append(library_parameters(self.weight[:, : self._beside], NO_WEIGHT, dtype))
        return found
