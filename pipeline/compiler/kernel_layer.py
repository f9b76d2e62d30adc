"""A layer that a kernel runs: what it computes, as a module of the graph, and its parts as the kernel reads them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.batch import laid_out
from pipeline.compiler.fp8_rounding import quantised
from pipeline.kernels.common.activation import NONE, Activation
from pipeline.kernels.common.block_statistics import ROWS, statistics_of
from pipeline.kernels.common.epilogue import Head
from pipeline.kernels.common.kernel_op import NO_WEIGHT, Ends, KernelOp, LibraryParameters

OUT, POOLED, LOGITS, STATISTICS = range(4)  # places in a layer's answer

Answer = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]


class Packed(NamedTuple):
    """A layer's parts as its kernel reads them.

    Attributes:
        weight: of any shape, in the type that the kernel multiplies in; None for a kernel without weights.
        scale: [out] fp32; None for 1.
        bias: [out] fp32; None for a kernel without weights.
        second_weight: of a second input.
        border: [3, 3, out] fp32, what is added at the border; None for nothing.
    """

    weight: Tensor | None
    scale: Tensor | None
    bias: Tensor | None
    second_weight: Tensor | None = None
    border: Tensor | None = None


class KernelLayer(nn.Module):
    """A layer in a graph between matching and lowering.

    Called, it computes the layer by torch's own operations; lowering puts the kernel's operation in its place.

    Attributes:
        name: of the net's module whose weights these are.
        op: the kernel.
        weight: in torch's own shape, fp32; None for a kernel without weights.
        bias: [out] fp32; None for a kernel without weights.
        activation: what follows.
        pool: whether the 2×2 maxima are wanted.
        slopes: [out] fp32, of an activation that has one for each channel.
        statistics: whether the mean and squared deviations of the output's blocks of pixels are wanted.
        head: a 1×1 convolution that follows; its logits are fp32.
        stores_out: whether somebody reads the output itself.
        slices: of how many, one below the other, its maps are made: a volume's depth, 1 for an image.
        dilation: how many pixels apart the taps of its window are.
    """

    def __init__(self, name: str, op: KernelOp, weight: Tensor | None, bias: Tensor | None) -> None:
        super().__init__()
        self.name, self.op = name, op
        self.weight, self.bias = weight, bias
        self.activation: Activation = NONE
        self.slopes: Tensor | None = None
        self.pool = self.statistics = False
        self.head: Head | None = None
        self.stores_out = True
        self.slices = self.dilation = 1

    def has_whole_blocks(self, height: int) -> bool:
        """Whether no block of rows that its kernel sums reaches over two slices of an output as high as this."""
        made = int(self.slices * self.op.growth_deep)
        return made == 1 or height // made % ROWS == 0

    def forward(self, dtype: torch.dtype, *inputs: Tensor, residual: Tensor | None = None) -> Answer:
        """The output [N, out, H', W'], its 2×2 maxima, the logits and the statistics, each None where it isn't wanted.

        Args:
            dtype: in which the layer runs.
            inputs: [N, in, H, W], and where there is a second one [N, skip, 2 H, 2 W].
            residual: [N, out, H', W'], added before the activation.
        """
        return self.by_library(self.parameters_in(dtype), inputs, residual)

    def by_library(
        self, parameters: Sequence[LibraryParameters], inputs: Sequence[Tensor], residual: Tensor | None
    ) -> Answer:
        """The same of the inputs [N, in, H, W] with the weights and biases of `parameters_in`."""
        y = self.sums_by_library(parameters, inputs, residual)
        if self.op.writes_logits:
            return None, None, y.float().contiguous(), None
        pooled = functional.max_pool2d(y, 2) if self.pool else None
        logits = None
        if self.head is not None:
            weight, bias = (part.to(y.dtype) for part in self.head)
            logits = functional.conv2d(y, weight[..., None, None], bias).float().contiguous()
        statistics = statistics_of(y.float().permute(0, 2, 3, 1), self.op.phases) if self.statistics else None
        return y if self.stores_out else None, pooled, logits, statistics

    def sums_by_library(
        self, parameters: Sequence[LibraryParameters], inputs: Sequence[Tensor], residual: Tensor | None
    ) -> Tensor:
        """The output [N, out, H', W'] of the inputs [N, in, H, W], residual and activation included."""
        ends = Ends(self.activation, self.slopes, residual, dilation=self.dilation)
        return self.op.library(inputs[0], parameters[0], ends)

    def parameters_in(self, dtype: torch.dtype) -> list[LibraryParameters]:
        """Weights and biases in a type, as the library reads them."""
        if self.weight is None or self.bias is None:
            return [LibraryParameters(NO_WEIGHT, NO_WEIGHT)]
        return [library_parameters(self.weight, self.bias, dtype)]

    def packed(self, dtype: torch.dtype, in_scales: Sequence[float] | None, out_scale: float, channels: int) -> Packed:
        """The parts as the kernel reads them.

        Args:
            dtype: of the products, where they aren't in fp8.
            in_scales: by which the inputs' fp8 values are to be multiplied; None for inputs in `dtype`.
            out_scale: by which the output's fp8 values are to be multiplied; 1 for an output in `dtype`.
            channels: of the input.
        """
        rescale = (in_scales[0] if in_scales else 1.0) / out_scale
        if self.op.pack is None or self.weight is None or self.bias is None:
            return Packed(None, None if rescale == 1.0 else torch.full((channels,), rescale), None)
        weight, bias = self.op.pack(self.weight), (self.bias / out_scale).float().contiguous()
        scale = torch.full_like(bias, rescale)
        if not in_scales:
            return Packed(weight.to(dtype), None if rescale == 1.0 else scale, bias)
        rounded, by_channel = quantised(weight, self.op.out_axis, summed=self.op.tap_axis)
        return Packed(rounded, scale * by_channel, bias)


def library_parameters(weight: Tensor, bias: Tensor, dtype: torch.dtype) -> LibraryParameters:
    """A weight [out, in, k, k] and bias [out] in a type, the weight in channels_last; of volumes it has one more k."""
    return LibraryParameters(laid_out(weight.to(dtype)), bias.to(dtype))


class LibraryLayer(nn.Module):
    """A `KernelLayer` that the library runs: its parameters cast once."""

    def __init__(self, layer: KernelLayer, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer
        parameters = layer.parameters_in(dtype)
        self.weights = nn.ParameterList([nn.Parameter(part.weight, requires_grad=False) for part in parameters])
        self.biases = nn.ParameterList([nn.Parameter(part.bias, requires_grad=False) for part in parameters])

    def forward(self, *inputs: Tensor, residual: Tensor | None = None) -> Answer:
        """The layer's answer to its inputs [N, in, H, W] and its residual [N, out, H', W']."""
        pairs = zip(self.weights, self.biases, strict=True)
        return self.layer.by_library([LibraryParameters(*pair) for pair in pairs], inputs, residual)
