"""Layers that a kernel runs, as modules of the graph: what they compute, their weights as the kernel reads them.

An up-sampling with the 3×3 convolution after it is one layer. `layer_of` and its like read the nodes that call layers.
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from pipeline.compiler.batch import laid_out
from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fx_graph import is_call, part_of_answer
from pipeline.kernels import conv3x3
from pipeline.kernels.common.activation import NONE, Activation
from pipeline.kernels.common.block_statistics import blocks_of, statistics_of
from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.epilogue import Head
from pipeline.kernels.common.kernel_op import NO_WEIGHT, Ends, KernelOp, LibraryParameters, Packed, ended
from pipeline.kernels.common.nhwc import FP8_MAX, in_fp8
from pipeline.kernels.conv3x3.conv3x3_triton import STACKED
from pipeline.kernels.polyphase import UPSAMPLED, Composition, compose_nearest, compose_transposed, pack

OUT, POOLED, LOGITS, STATISTICS = range(4)  # places in a layer's answer

Answer = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]
Parameters = Sequence[LibraryParameters]


class KernelLayer(nn.Module):
    """A layer in a graph between matching and lowering: kernel, weight in torch's own shape, and bias [out] in fp32."""

    def __init__(self, name: str, op: KernelOp, weight: Tensor | None, bias: Tensor | None) -> None:
        super().__init__()
        self.name, self.op = name, op
        self.weight, self.bias = weight, bias
        self.activation: Activation = NONE
        self.slopes: Tensor | None = None  # [out] fp32, of an activation that has one for each channel
        self.pool = self.statistics = False
        self.head: Head | None = None  # a 1×1 convolution that follows; its logits are fp32
        self.stores_out = True  # whether somebody reads the output itself
        self.slices = self.dilation = 1
        self.padding_mode = "zeros"

    def forward(self, dtype: torch.dtype, *inputs: Tensor, residual: Tensor | None = None) -> Answer:
        """Return the output [N, out, H', W'], its 2×2 maxima, logits and statistics, each None if it isn't wanted."""
        return self.by_library(self.parameters_in(dtype), inputs, residual)

    def by_library(self, parameters: Parameters, inputs: Sequence[Tensor], residual: Tensor | None) -> Answer:
        """Return the same of the inputs [N, in, H, W] with the weights and biases of `parameters_in`."""
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

    def sums_by_library(self, parameters: Parameters, inputs: Sequence[Tensor], residual: Tensor | None) -> Tensor:
        """Return the output [N, out, H', W'] of the inputs [N, in, H, W], residual and activation included."""
        ends = Ends(self.activation, self.slopes, residual, self.slices, self.dilation, self.padding_mode)
        x, *factors = inputs  # [N, in, 1, 1], of the kernel that multiplies its input by them
        return self.op.library(x * factors[0] if factors else x, parameters[0], ends)

    def least_by_library(self, parameters: Parameters, inputs: Sequence[Tensor]) -> None:
        """Run what any compiler has to do that calls the library: the products, and what reads and writes them again.

        That is one pass for an activation or a sum, one for edges, and one that only reads for a norm's statistics.
        """
        ends = Ends(NONE, None, None, self.slices, self.dilation, self.padding_mode)
        made = self.op.library(inputs[0], LibraryParameters(parameters[0].weight, None), ends)
        if self.stores_out and self.activation != NONE:
            made.relu_()
        if self.statistics:
            made.sum()

    def parameters_in(self, dtype: torch.dtype) -> list[LibraryParameters]:
        """Weights and biases in a type, as the library reads them."""
        if self.weight is None or self.bias is None:
            return [LibraryParameters(NO_WEIGHT, NO_WEIGHT)]
        return [LibraryParameters(laid_out(self.weight.to(dtype)), self.bias.to(dtype))]

    def packed(self, dtype: torch.dtype, in_scales: Sequence[float] | None, out_scale: float, channels: int) -> Packed:
        """Return the parts as the kernel reads them: fp8 values with these scales; without `in_scales`, `dtype`."""
        rescale = (in_scales[0] if in_scales else 1.0) / out_scale
        if self.op.pack is None or self.weight is None or self.bias is None:
            return Packed(None, None if rescale == 1.0 else torch.full((channels,), rescale), None)
        weight, bias = self.op.pack(self.weight), (self.bias / out_scale).float().contiguous()
        scale: Tensor | None = None
        if in_scales:
            weight, by_channel = quantised(weight, self.op.out_axis, summed=self.op.tap_axis)
            scale = torch.full_like(bias, rescale) * by_channel
        else:
            weight, scale = weight.to(dtype), None if rescale == 1.0 else torch.full_like(bias, rescale)
        few = weight.shape[1] <= STACKED and self.slices % 2 == 0
        if self.op in (conv3x3.VOLUME_OP, conv3x3.WIDE_VOLUME_OP) and few and not reaching_views_barred():
            weight = conv3x3.stacked(weight)  # of two slices at a time
        return Packed(weight, scale, bias)


class TokensLayer(KernelLayer):
    """A linear layer, whose tokens [tokens, in] are the pixels of an image of one row, as `conv1x1` reads them."""

    def sums_by_library(self, parameters: Parameters, inputs: Sequence[Tensor], residual: Tensor | None) -> Tensor:
        """Return the output [1, out, 1, tokens] of the input [1, in, 1, tokens] by a product of matrices."""
        weight, bias = parameters[0]
        sums = functional.linear(inputs[0].permute(0, 2, 3, 1).to(weight.dtype), weight.flatten(1), bias)
        return ended(sums.permute(0, 3, 1, 2), Ends(self.activation, self.slopes, residual))


class LibraryLayer(nn.Module):
    """A `KernelLayer` that the library runs: its parameters cast once."""

    def __init__(self, layer: KernelLayer, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer
        weights, biases = zip(*layer.parameters_in(dtype), strict=True)
        self.weights, self.biases = (
            nn.ParameterList([nn.Parameter(part, requires_grad=False) for part in parts]) for parts in (weights, biases)
        )

    def forward(self, *inputs: Tensor, residual: Tensor | None = None) -> Answer:
        """Return the layer's answer to its inputs [N, in, H, W] and its residual [N, out, H', W']."""
        pairs = zip(self.weights, self.biases, strict=True)
        return self.layer.by_library([LibraryParameters(*pair) for pair in pairs], inputs, residual)


@dataclass(frozen=True)
class Upsampling:
    """An up-sampling by two: a transposed convolution, or the nearest pixel."""

    weight: Tensor | None = None  # [in, mid, 2, 2], fp32; None for the nearest pixel
    bias: Tensor | None = None  # [mid]


class UpsampledLayer(KernelLayer):
    """An up-sampling of a small map and a convolution [out, skip + mid, 3, 3] of the skip and it as one layer."""

    def __init__(self, name: str, upsampling: Upsampling, weight: Tensor, bias: Tensor, channels: int) -> None:
        super().__init__(name, UPSAMPLED, weight, bias)
        self.upsampling, self.channels = upsampling, channels

    def composition(self) -> Composition:
        """Both as one linear map, in float64."""
        assert self.weight is not None
        assert self.bias is not None
        convolution = (self.weight.double(), self.bias.double())
        if self.upsampling.weight is None:
            return compose_nearest(convolution, self.channels)
        return compose_transposed((self.upsampling.weight, self.upsampling.bias), convolution)

    def flops_per_image(self, shapes: Sequence[Sequence[int]]) -> float:
        """Return the FLOPs of the composed layer for inputs of these shapes: fewer than of the two that it replaces."""
        assert self.bias is not None
        outer, (small, *skips) = len(self.bias), [(1, *shape[1:]) for shape in shapes]
        return UPSAMPLED.flops(small, outer) + sum(conv3x3.OP.flops(skip, outer) for skip in skips)

    def sums_by_library(self, parameters: Parameters, inputs: Sequence[Tensor], residual: Tensor | None) -> Tensor:
        """Return the output [N, out, 2 h, 2 w] of the small map [N, in, h, w] and the skip [N, skip, 2 h, 2 w]."""
        own, *transposed = parameters
        dtype = own.weight.dtype
        small, *skips = (x.to(dtype, memory_format=torch.channels_last) for x in inputs)
        if transposed:
            large = functional.conv_transpose2d(small, *transposed[0], stride=2)
        else:
            large = functional.interpolate(small, scale_factor=2.0, mode="nearest")
        sums = functional.conv2d(torch.cat([*skips, large], 1), *own, padding=1)
        return ended(sums, Ends(self.activation, self.slopes, residual))

    def least_by_library(self, parameters: Parameters, inputs: Sequence[Tensor]) -> None:
        """Run both convolutions alone, of values as the library reads them, and the pass for an activation."""
        own, *transposed = parameters
        small = inputs[0]
        if transposed:
            functional.conv_transpose2d(small, transposed[0].weight, stride=2)
        size = (len(small), own.weight.shape[1], 2 * small.shape[2], 2 * small.shape[3])
        like = torch.empty(size, dtype=small.dtype, device=small.device, memory_format=torch.channels_last)
        made = functional.conv2d(like, own.weight, padding=1)
        if self.stores_out and self.activation != NONE:
            made.relu_()

    def parameters_in(self, dtype: torch.dtype) -> list[LibraryParameters]:
        """Return the convolution's weight and bias in a type, and then those of a transposed convolution."""
        parameters = super().parameters_in(dtype)
        if self.upsampling.weight is not None:
            weight, bias = self.upsampling.weight.to(dtype), self.upsampling.bias
            bias = weight.new_zeros(weight.shape[1]) if bias is None else bias.to(dtype)
            parameters.append(LibraryParameters(laid_out(weight), bias))
        return parameters

    def packed(self, dtype: torch.dtype, in_scales: Sequence[float] | None, out_scale: float, _: int) -> Packed:
        """Return the parts as the kernel reads them; the arguments are those of any layer."""
        small, full = (*(in_scales or (1.0,)), 1.0)[:2]
        return pack(self.composition(), FP8 if in_scales else dtype, (small, full), out_scale, rounded_together)


GETITEM = "<built-in function getitem>"


def layer_of(module: fx.GraphModule, node: object) -> KernelLayer | None:
    """Return the layer that a node calls; None where it calls none."""
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return None
    submodule = module.get_submodule(str(node.target))
    return submodule if isinstance(submodule, KernelLayer) else None


def layer_calls(module: fx.GraphModule) -> list[tuple[fx.Node, KernelLayer]]:
    """Return the nodes that call layers, each with its layer, in the order of the graph."""
    return [(node, layer) for node in module.graph.nodes if (layer := layer_of(module, node))]


def inputs_of(node: fx.Node) -> list[fx.Node]:
    """Return the values that a layer's node multiplies, in order."""
    return [value for value in node.args if isinstance(value, fx.Node)]


def maps_of(node: fx.Node) -> list[fx.Node]:
    """Return the parts of a layer's answer that lie in NHWC: its output and its 2×2 maxima."""
    return [part for part in node.users if part_of_answer(part) in (OUT, POOLED)]


def residual_of(node: fx.Node) -> fx.Node | None:
    """Return the value that a layer's node adds."""
    value = node.kwargs.get("residual")
    return value if isinstance(value, fx.Node) else None


def layer_behind(module: fx.GraphModule, value: object) -> KernelLayer | None:
    """Return the layer of whose answer a value is a part; None where it is of none."""
    return layer_of(module, value.args[0]) if is_call(value, GETITEM) else None


def producer(module: fx.GraphModule, value: object) -> tuple[fx.Node, KernelLayer] | None:
    """Return the layer's node, and the layer, that gives a value as its output; None where no layer does."""
    layer = layer_behind(module, value)
    if layer is None or not isinstance(value, fx.Node) or value.args[1] != OUT:
        return None
    return value.all_input_nodes[0], layer


def summed(node: fx.Node, layer: KernelLayer, shape: Sequence[int]) -> fx.Node:
    """Let a layer sum its output of this shape [N, out, H, W]; return the statistics' node, at the insertion point."""
    layer.statistics = True
    batch, channels, height, width = shape
    statistics = node.graph.call_function(operator.getitem, (node, STATISTICS))
    blocks = blocks_of(height, width, layer.op.phases)
    statistics.meta["val"] = torch.empty(batch, blocks, 2, channels, device="meta")
    return statistics


def put_layer(net: ExportedNet, node: fx.Node, layer: KernelLayer, inputs: list[fx.Node], place: int = OUT) -> fx.Node:
    """Put a layer that reads these values, or rather that part of its answer, in a node's place; the part's node."""
    graph, target = net.module.graph, f"kernel_layer_{node.name}"
    net.module.add_submodule(target, layer)
    with graph.inserting_before(node):
        answer = graph.call_module(target, (net.dtype, *inputs))
        out = graph.call_function(operator.getitem, (answer, place))
    out.meta, answer.meta = dict(node.meta), {"nn_module_stack": node.meta.get("nn_module_stack", {})}
    node.replace_all_uses_with(out)
    graph.erase_node(node)
    return out


FP8 = torch.float8_e4m3fn
LEAST = 1e-12  # of a scale's largest magnitude: a value that is always 0 needs some scale


def quantised(weight: Tensor, axis: int, summed: int | None = None) -> tuple[Tensor, Tensor]:
    """Return a packed weight in e4m3 and the scale of each output channel, which lies along `axis`.

    In flat parts of an image the sum of rounding errors along `summed` counts: on the shipped net 4.9e-3, not 1.5e-2.
    """
    others = [dim for dim in range(weight.ndim) if dim != axis]
    scale = weight.float().abs().amax(others).clamp_min(LEAST) / FP8_MAX  # in fp16 the least would be 0
    shape = [1] * weight.ndim
    shape[axis] = -1
    scaled = weight / scale.reshape(shape)
    return (in_fp8(scaled) if summed is None else rounded_together(scaled, summed)), scale


def rounded_together(value: Tensor, dim: int) -> Tensor:
    """Return a tensor of any shape in e4m3, its sum along `dim` as near as the rounding of the smallest part allows."""
    order = value.abs().argsort(dim, descending=True)
    carried = torch.zeros_like(value.select(dim, 0))
    parts = []
    for part in value.gather(dim, order).unbind(dim):
        parts.append(in_fp8(part + carried).float())
        carried = part + carried - parts[-1]
    together = torch.stack(parts, dim)
    return torch.empty_like(together).scatter_(dim, order, together).to(FP8)
