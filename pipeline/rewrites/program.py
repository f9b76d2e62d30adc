"""Runs a rewritten graph: one step an operation, each with its weights packed and its way of running chosen."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from pipeline.records.chrome_trace import LAYER
from pipeline.rewrites.graph import Graph, Node
from pipeline.rewrites.layers import REFERENCE, Layer, Outputs, convolution
from pipeline.rewrites.precision import DTYPES, Precision

Values = dict[str, Tensor]
OURS = {"conv3x3", "conv3x3_first", "conv1x1", "upconv2x2", "upsample2x"}
KEEP_FP32 = {"aten.pad.default", "aten.slice.Tensor"}  # borders of the net: the image and the logits stay as they are


class Program:
    """A graph made ready for one precision and device.

    Attributes:
        choices: for each of our operations a tile, "library" or "reference"; the reference where none is named.
    """

    def __init__(self, graph: Graph, precision: Precision, device: torch.device, choices: dict[str, Any]) -> None:
        self.graph = graph
        self.precision = precision
        self.device = device
        self.choices = choices
        self.layers = {node.name: Layer(node, graph, precision, device) for node in graph.nodes if node.op in OURS}
        for name, choice in choices.items():
            self.layers[name].settle_for(choice)
        self.steps = [self._step(node) for node in graph.nodes]
        self.last_uses = last_uses(graph)

    def __call__(self, image: Tensor, keep: bool = False) -> Tensor:
        """The logits of a batch in fp32; `keep` keeps every value, for `largest`."""
        values = {self.graph.input: image}
        for node, step, dying in zip(self.graph.nodes, self.steps, self.last_uses, strict=True):
            with record_function(f"{LAYER}{node.layer}"):
                step(values)
            for value in [] if keep else dying:
                values.pop(value, None)
        self.values = values if keep else {}
        return values[self.graph.output]

    def largest(self, image: Tensor) -> dict[str, float]:
        """The largest magnitude of every value that one of our operations writes."""
        self(image, keep=True)
        written = [value for node in self.graph.nodes if node.op in OURS for value in (node.output, node.pooled)]
        found = {value: float(self.values[value].float().abs().max()) for value in written if value}
        self.values = {}
        return found

    def moved(self, image: Tensor) -> int:
        """Bytes that the operations of one call read and write: values once for each operation, and weights."""
        self(image, keep=True)
        working = [node for node in self.graph.nodes if node.op != "joined"]
        parts = [self.values[value] for node in working for value in [*node.inputs, *node.writes]]
        self.values = {}
        packed = [layer.weights for layer in self.layers.values()]
        width = DTYPES[self.precision.work].itemsize
        others = [self.graph.tensors[key] for node in working if node.op not in OURS for key in node.tensors.values()]
        moved = sum(part.numel() * part.element_size() for part in [*parts, *packed] if isinstance(part, Tensor))
        return moved + sum(part.numel() for part in others) * width

    def place(self, values: Values, name: str | None) -> Tensor | None:
        """Memory for a value: its part of a joined buffer, or a tensor of its own; channels_last."""
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
        """Memory for all that one of our operations writes."""
        logits = None
        if node.logits:
            logits = values[node.logits] = torch.empty(self.graph.shapes[node.logits], device=self.device)
        return Outputs(self.place(values, node.output), self.place(values, node.pooled), logits)

    def _empty(self, name: str) -> Tensor:
        dtype, shape = self.precision.dtype(name), self.graph.shapes[name]
        return torch.empty(shape, dtype=dtype, device=self.device, memory_format=torch.channels_last)

    def _step(self, node: Node) -> Callable[[Values], None]:
        if node.op in OURS:
            return self._ours(node)
        if node.op == "joined":
            return lambda values: None
        return self._convolution(node) if node.op in ("conv2d", "conv_transpose2d") else self._aten(node)

    def _ours(self, node: Node) -> Callable[[Values], None]:
        layer, choice = self.layers[node.name], self.choices.get(node.name, REFERENCE)

        def step(values: Values) -> None:
            x = self.read(values[node.inputs[0]], node)
            layer.run(x, self.outputs(values, node), choice)

        return step

    def read(self, value: Tensor, node: Node) -> Tensor:
        """A value as an operation of ours reads it: the image as it came, anything else in channels_last."""
        if node.op == "conv3x3_first":
            return value.float().contiguous()
        if value.dtype == DTYPES["fp8"]:
            return value
        worked: Tensor = _cast(value, DTYPES[self.precision.work])
        return worked if worked.stride(1) == 1 else worked.contiguous(memory_format=torch.channels_last)

    def _convolution(self, node: Node) -> Callable[[Values], None]:
        """A convolution that no kernel of ours takes, by the library."""
        work, geometry = DTYPES[self.precision.work], node.attributes
        weight, bias = self.graph.parameter(node, "weight"), self.graph.parameter(node, "bias")
        assert weight is not None
        assert bias is not None
        kernel = weight.to(self.device, work).contiguous(memory_format=torch.channels_last)
        shift = bias.to(self.device, work)
        same = {key: geometry[key] for key in ("stride", "padding", "dilation", "groups")}

        def step(values: Values) -> None:
            x = values[node.inputs[0]].to(work).contiguous(memory_format=torch.channels_last)
            if node.op == "conv2d":
                y = convolution(x, kernel, shift, bool(geometry["relu"]), **same)
            else:
                y = torch.nn.functional.conv_transpose2d(x, kernel, shift, output_padding=geometry["extra"], **same)
            values[str(node.output)] = y

        return step

    def _aten(self, node: Node) -> Callable[[Values], None]:
        """An operation as torch has it, in the working precision."""
        call = operator.getitem if node.op == "getitem" else aten(node.op)
        work = DTYPES[self.precision.work]
        tensors = {role: _cast(self.graph.tensors[key].to(self.device), work) for role, key in node.tensors.items()}

        def step(values: Values) -> None:
            inputs = [values[name] for name in node.inputs]
            if node.op not in KEEP_FP32:
                inputs = [_cast(value, work) for value in inputs]
            known = Known(inputs, tensors, self.device)
            values[str(node.output)] = call(
                *known.decode(node.attributes["args"]), **known.decode(node.attributes["kwargs"])
            )

        return step


def aten(name: str) -> Any:
    """ATen's operation of a name such as "aten.relu.default"; nothing else can be named.

    Raises:
        ValueError: there is none.
    """
    space, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None) if space == "aten" else None
    if not isinstance(found, torch._ops.OpOverload):
        raise ValueError(f"{name}: no operation of ATen")
    return found


@dataclass(frozen=True)
class Known:
    """What the placeholders in an ATen operation's arguments stand for."""

    inputs: list[Any]
    tensors: dict[str, Tensor]
    device: torch.device

    def decode(self, value: Any) -> Any:
        """Arguments out of JSON."""
        match value:
            case list():
                return [self.decode(part) for part in value]
            case {"input": index}:
                found: Any = self.inputs[index]
            case {"tensor": role}:
                found = self.tensors[role]
            case {"torch": name}:
                found = getattr(torch, name)
            case {"device": True}:
                found = self.device
            case dict():
                found = {key: self.decode(part) for key, part in value.items()}
            case _:
                found = value
        return found


def last_uses(graph: Graph) -> list[list[str]]:
    """For each node the values that nobody reads after it, so that their memory serves again."""
    readers: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        readers |= dict.fromkeys([*node.inputs, *node.writes], index)
    for part, (wide, _) in graph.places.items():
        readers[part] = max(readers[part], readers[wide])
    readers.pop(graph.output, None)
    return [[value for value, last in readers.items() if last == index] for index in range(len(graph.nodes))]


def _cast(value: Any, work: torch.dtype) -> Any:
    floating = isinstance(value, Tensor) and value.is_floating_point() and value.dtype != work
    return value.to(work) if floating else value
