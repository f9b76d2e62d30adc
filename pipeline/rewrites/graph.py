"""A net as a list of operations on values, small enough to rewrite, to write to a file and to read again.

It comes from torch.export, so every operation is an ATen one until a pass makes it one of ours. Values are images
[batch, channels, height, width] (or whatever an ATen operation gives); ours keep them in channels_last.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

IDENTITIES = {"aten.dropout.default", "aten.clone.default", "aten.contiguous.default", "aten.detach.default"}


@dataclass
class Node:
    """One operation.

    Attributes:
        op: "aten.relu.default" and the like, or one of ours: conv3x3, conv3x3_first, conv1x1, upconv2x2, upsample2x.
        inputs: the values that it reads.
        output: the value that it writes; None where only `pooled` or `logits` is wanted.
        attributes: JSON values; of an ATen operation "args" and "kwargs", where {"input": i} stands for a value and
            {"tensor": role} for one of `tensors`.
        tensors: role ("weight", "bias", ...) to a key of the graph's tensors.
        pooled: the value that holds the 2×2 maxima of the output.
        logits: the value that a folded 1×1 head writes.
    """

    op: str
    inputs: list[str]
    output: str | None
    attributes: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, str] = field(default_factory=dict)
    pooled: str | None = None
    logits: str | None = None

    @property
    def name(self) -> str:
        """What it is called: after what it writes."""
        return str(self.output or self.logits or self.pooled)

    @property
    def writes(self) -> list[str]:
        """The values that it writes."""
        return [value for value in (self.output, self.pooled, self.logits) if value]

    def argument(self, index: int, default: Any = None) -> Any:
        """An ATen operation's positional argument."""
        args = self.attributes["args"]
        return args[index] if len(args) > index else default


@dataclass
class Graph:
    """The net: its operations in order, its tensors, and the shape of every value."""

    nodes: list[Node]
    tensors: dict[str, Tensor]
    shapes: dict[str, list[int]]
    input: str
    output: str
    places: dict[str, tuple[str, int]] = field(default_factory=dict)  # value to a wider one and its first channel there

    def producer(self, value: str) -> Node | None:
        """The node that writes a value; None for the input."""
        return next((node for node in self.nodes if value in node.writes), None)

    def users(self, value: str) -> list[Node]:
        """The nodes that read a value."""
        return [node for node in self.nodes if value in node.inputs]

    def only_user(self, value: str | None) -> Node | None:
        """The one node that reads a value, where there is just one and the value isn't the net's answer."""
        users = self.users(value) if value else []
        return users[0] if len(users) == 1 and value != self.output else None

    def parameter(self, node: Node, role: str) -> Tensor | None:
        """A node's tensor."""
        return self.tensors[node.tensors[role]] if role in node.tensors else None

    def drop(self, node: Node, instead: str) -> None:
        """Take a node away; who read its output reads `instead`."""
        self.nodes.remove(node)
        for other in self.nodes:
            other.inputs = [instead if value == node.output else value for value in other.inputs]
        if self.output == node.output:
            self.output = instead

    def found(self, op: str) -> Iterator[Node]:
        """The nodes of one operation, as they stood at the start."""
        yield from [node for node in self.nodes if node.op == op]


def trace(model: nn.Module, batch: Tensor) -> Graph:
    """The net for batches of this shape.

    Raises:
        Exception: whatever torch.export raises for a net that it can't export.
    """
    program = torch.export.export(model, (batch,))
    tensors = parameters(program)
    graph = Graph([], {}, {}, "", "")
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name not in tensors:
            graph.input = node.name
            graph.shapes[node.name] = list(batch.shape)
        elif node.op == "call_function":
            read(graph, node, tensors)
        elif node.op == "output":
            graph.output = node.args[0][0].name
    for node in [node for node in graph.nodes if node.op in IDENTITIES]:
        graph.drop(node, node.inputs[0])
    return graph


def parameters(program: ExportedProgram) -> dict[str, Tensor]:
    """The tensors behind the program's placeholders, by the placeholders' names."""
    signature = program.graph_signature
    named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    found = {place: program.state_dict.get(name, program.constants.get(name)) for place, name in named.items()}
    constants = {place: program.constants[name] for place, name in signature.inputs_to_lifted_tensor_constants.items()}
    return {name: tensor.detach() for name, tensor in {**found, **constants}.items() if isinstance(tensor, Tensor)}


def read(graph: Graph, node: torch.fx.Node, tensors: dict[str, Tensor]) -> None:
    """Append one call of the exported program; an operation in place becomes the one that makes a new tensor."""
    added = Node(str(node.target).replace("_.", "."), [], node.name)

    def encode(value: Any) -> Any:
        if isinstance(value, torch.fx.Node) and value.name in tensors:
            role = f"t{len(added.tensors)}"
            added.tensors[role] = value.name
            graph.tensors[value.name] = tensors[value.name]
            return {"tensor": role}
        if isinstance(value, torch.fx.Node):
            added.inputs.append(value.name)
            return {"input": len(added.inputs) - 1}
        if isinstance(value, list | tuple):
            return [encode(part) for part in value]
        return {"dtype": str(value)} if isinstance(value, torch.dtype) else value

    added.attributes = {"args": encode(node.args), "kwargs": {key: encode(part) for key, part in node.kwargs.items()}}
    graph.nodes.append(added)
    answer = node.meta.get("val")
    if isinstance(answer, Tensor):
        graph.shapes[node.name] = [int(length) for length in answer.shape]
