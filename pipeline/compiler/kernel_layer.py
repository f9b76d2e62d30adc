"""A layer that a kernel runs: what it computes, as a module of the graph, and its parts as the kernel reads them."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.fp8_rounding import quantised
from pipeline.kernels.common.activation import NONE, Activation
from pipeline.kernels.common.epilogue import Head
from pipeline.kernels.common.kernel_op import NO_WEIGHT, KernelOp, LibraryParameters

OUT, POOLED, LOGITS = range(3)  # places in a layer's answer

Answer = tuple[Tensor | None, Tensor | None, Tensor | None]


class Packed(NamedTuple):
    """A layer's parts as its kernel reads them.

    Attributes:
        weight: of any shape, in the type that the kernel multiplies in; None for a kernel without weights.
        scale: [out] fp32; None for 1.
        bias: [out] fp32; None for a kernel without weights.
    """

    weight: Tensor | None
    scale: Tensor | None
    bias: Tensor | None


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
        head: a 1×1 convolution that follows; its logits are fp32.
        stores_out: whether somebody reads the output itself.
    """

    def __init__(self, name: str, op: KernelOp[Any], weight: Tensor | None, bias: Tensor | None) -> None:
        super().__init__()
        self.name, self.op = name, op
        self.weight, self.bias = weight, bias
        self.activation: Activation = NONE
        self.pool = False
        self.head: Head | None = None
        self.stores_out = True

    def forward(self, x: Tensor, dtype: torch.dtype) -> Answer:
        """The output [N, out, H', W'], its 2×2 maxima and the logits, each None where it isn't wanted.

        Args:
            x: [N, in, H, W].
            dtype: in which the layer runs.
        """
        return self.by_library(x, self.parameters_in(dtype))

    def by_library(self, x: Tensor, parameters: LibraryParameters) -> Answer:
        """The same of x [N, in, H, W] with the weight and bias of `parameters_in`."""
        y = self.op.library(x, parameters, self.activation)
        pooled = functional.max_pool2d(y, 2) if self.pool else None
        logits = None
        if self.head is not None:
            weight, bias = (part.to(y.dtype) for part in self.head)
            logits = functional.conv2d(y, weight[..., None, None], bias).float().contiguous()
        return y if self.stores_out else None, pooled, logits

    def parameters_in(self, dtype: torch.dtype) -> LibraryParameters:
        """Weight and bias in a type, as the library reads them."""
        if self.weight is None or self.bias is None:
            return LibraryParameters(NO_WEIGHT, NO_WEIGHT)
        weight = self.weight.to(dtype).contiguous(memory_format=torch.channels_last)
        return LibraryParameters(weight, self.bias.to(dtype))

    def packed(self, dtype: torch.dtype, x_scale: float | None, out_scale: float, channels: int) -> Packed:
        """The parts as the kernel reads them.

        Args:
            dtype: of the products, where they aren't in fp8.
            x_scale: by which the input's fp8 values are to be multiplied; None for an input in `dtype`.
            out_scale: by which the output's fp8 values are to be multiplied; 1 for an output in `dtype`.
            channels: of the input.
        """
        rescale = (x_scale or 1.0) / out_scale
        if self.op.pack is None or self.weight is None or self.bias is None:
            return Packed(None, None if rescale == 1.0 else torch.full((channels,), rescale), None)
        weight, bias = self.op.pack(self.weight), (self.bias / out_scale).float().contiguous()
        scale = torch.full_like(bias, rescale)
        if x_scale is None:
            return Packed(weight.to(dtype), None if rescale == 1.0 else scale, bias)
        rounded, by_channel = quantised(weight, self.op.out_axis, summed=self.op.tap_axis)
        return Packed(rounded, scale * by_channel, bias)


class LibraryLayer(nn.Module):
    """A `KernelLayer` that the library runs: its parameters cast once."""

    def __init__(self, layer: KernelLayer, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer
        weight, bias = layer.parameters_in(dtype)
        self.weight, self.bias = nn.Buffer(weight), nn.Buffer(bias)

    def forward(self, x: Tensor) -> Answer:
        """The layer's answer to x [N, in, H, W]."""
        return self.layer.by_library(x, LibraryParameters(self.weight, self.bias))
