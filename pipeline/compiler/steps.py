"""The steps of a program: each reads values and adds those that it makes."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.compiler.aten import ArgumentDecoder, aten
from pipeline.compiler.graph import Graph, Node
from pipeline.compiler.kernel_layer import Backend, KernelLayer
from pipeline.compiler.quantize import Precision
from pipeline.kernels.common.epilogue import Outputs
from pipeline.kernels.common.kernel_op import LibraryParameters
from pipeline.kernels.common.library import convolution

Values = dict[str, Tensor]
KEEP_FP32 = {"aten.pad.default", "aten.slice.Tensor"}  # borders of the net: the image and the logits stay as they are


class Step(Protocol):
    """One operation of a program."""

    def __call__(self, values: Values) -> None:
        """Read some of the values, [batch, channels, height, width] or as ATen gives them, and add others."""


@dataclass(frozen=True)
class Memory:
    """Where kernels write: parts of joined buffers, or tensors of their own."""

    graph: Graph
    precision: Precision
    device: torch.device

    def place(self, values: Values, name: str | None) -> Tensor | None:
        """Memory for a value [N, channels, H, W] in channels_last, which is added to `values`; None for no name."""
        if name is None:
            return None
        if name in self.graph.places:
            wide, first = self.graph.places[name]
            if wide not in values:
                values[wide] = self._empty(wide)
            values[name] = values[wide][:, first : first + self.graph.shapes[name][1]]
        else:
            values[name] = self._empty(name)
        return values[name]

    def outputs(self, values: Values, node: Node) -> Outputs:
        """Memory for all that a kernel's operation writes, added to `values`: each [N, channels, H, W]."""
        logits = None
        if node.logits:
            logits = values[node.logits] = torch.empty(self.graph.shapes[node.logits], device=self.device)
        return Outputs(self.place(values, node.output), self.place(values, node.pooled), logits)

    def _empty(self, name: str) -> Tensor:
        dtype, shape = self.precision.dtype(name), self.graph.shapes[name]
        return torch.empty(shape, dtype=dtype, device=self.device, memory_format=torch.channels_last)


@dataclass(frozen=True)
class KernelStep:
    """An operation by its kernel, the library or the reference."""

    node: Node
    layer: KernelLayer
    memory: Memory

    def __call__(self, values: Values) -> None:
        """Read the input [N, channels, H, W], and add all that the operation writes."""
        choice = Backend.REFERENCE if self.layer.choice is None else self.layer.choice
        self.layer.run(self.read(values), self.memory.outputs(values, self.node), choice)

    def read(self, values: Values) -> Tensor:
        """The input [N, channels, H, W] as the kernel reads it."""
        return self.layer.read(values[self.node.inputs[0]])


def already_joined(values: Values) -> None:
    """A concatenation whose parts were written where they belong: the values [N, channels, H, W] are all there."""


def library_convolution(node: Node, graph: Graph, memory: Memory) -> Step:
    """A convolution that no kernel takes, by the library."""
    dtype, geometry = memory.precision.compute, node.attributes
    weight, bias = graph.tensor(node, "weight"), graph.tensor(node, "bias")
    kernel = weight.to(memory.device, dtype).contiguous(memory_format=torch.channels_last)
    parameters = LibraryParameters(kernel, bias.to(memory.device, dtype))
    same = {key: geometry[key] for key in ("stride", "padding", "dilation", "groups")}

    def step(values: Values) -> None:
        """Read [N, in, H, W] and add [N, out, H', W']."""
        x = values[node.inputs[0]].to(dtype).contiguous(memory_format=torch.channels_last)
        if node.op == "conv2d":
            values[str(node.output)] = convolution(x, parameters, node.activation, **same)
        else:
            extra = geometry["output_padding"]
            y = functional.conv_transpose2d(x, *parameters, output_padding=extra, **same)
            values[str(node.output)] = node.activation(y)

    return step


def aten_operation(node: Node, graph: Graph, memory: Memory) -> Step:
    """An operation as torch has it, in the compute dtype.

    Raises:
        UnsupportedError: torch has no operation of this name.
    """
    call: Callable[..., Any] = operator.getitem if node.op == "getitem" else aten(node.op)
    dtype = memory.precision.compute
    tensors = {role: _cast(graph.tensors[key].to(memory.device), dtype) for role, key in node.tensors.items()}

    def step(values: Values) -> None:
        """Read and add values [any shape]."""
        inputs = [values[name] for name in node.inputs]
        if node.op not in KEEP_FP32:
            inputs = [_cast(value, dtype) for value in inputs]
        known = ArgumentDecoder(inputs, tensors, memory.device)
        arguments, named = known.decode(node.attributes["args"]), known.decode(node.attributes["kwargs"])
        values[str(node.output)] = call(*arguments, **named)

    return step


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """A floating tensor in another type; anything else, as an operation with several answers gives it, as it is."""
    floating = isinstance(value, Tensor) and value.is_floating_point() and value.dtype != dtype
    return value.to(dtype) if floating else value
