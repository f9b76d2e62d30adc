"""A net as a list of operations on values, small enough to rewrite, to write to a file and to read again.

It comes from torch.export, so every operation is an ATen one until a pass makes it one of ours. Values are images
[batch, channels, height, width] (or whatever an ATen operation gives); ours keep them in channels_last.
"""

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram

IDENTITIES = {"aten.dropout.default", "aten.clone.default", "aten.contiguous.default", "aten.detach.default"}


class UnsupportedError(Exception):
    """A net that torch can't export, or not as operations that each make a new value; one line."""


@dataclass
class Node:
    """One operation.

    Attributes:
        op: "aten.relu.default" and the like, or one of ours: conv3x3, conv3x3_first, conv1x1, upconv2x2, upsample2x.
        inputs: the values that it reads.
        output: the value that it writes; None where only `pooled` or `logits` is wanted.
        attributes: JSON values; of an ATen operation "args" and "kwargs", where {"input": i} stands for a value,
            {"tensor": role} for one of `tensors`, {"torch": name} for torch's constant of that name and
            {"device": true} for the device that the net runs on.
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
    def layer(self) -> str:
        """The module of the net whose weights it uses, whatever else it does; its name where it has none."""
        return self.tensors["weight"].removesuffix(".weight") if "weight" in self.tensors else self.name

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
        UnsupportedError: torch can't export the net, or the net writes into a part of a value.
    """
    try:
        program = torch.export.export(model, (batch,))
    except Exception as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise UnsupportedError(f"torch can't export the net: {said[0]}") from error
    refuse_writes_to_views(program.graph)
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
    rename(graph, module_names(program.graph))
    for node in [node for node in graph.nodes if node.op in IDENTITIES]:
        graph.drop(node, node.inputs[0])
    return graph


def module_names(graph: fx.Graph) -> dict[str, str]:
    """For the first operation of each of the net's modules the module's name, as the user knows it."""
    named: dict[str, str] = {}
    for node in graph.nodes:
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        module = stack[-1][0] if stack else ""
        if module and module not in named.values():
            named[node.name] = module
    return named


def rename(graph: Graph, named: dict[str, str]) -> None:
    """Give values other names."""
    for node in graph.nodes:
        node.inputs = [named.get(value, value) for value in node.inputs]
        node.output = named.get(str(node.output), node.output)
    graph.shapes = {named.get(value, value): shape for value, shape in graph.shapes.items()}
    graph.output = named.get(graph.output, graph.output)


def parameters(program: ExportedProgram) -> dict[str, Tensor]:
    """The tensors behind the program's placeholders, by the placeholders' names."""
    signature = program.graph_signature
    named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    found = {place: program.state_dict.get(name, program.constants.get(name)) for place, name in named.items()}
    constants = {place: program.constants[name] for place, name in signature.inputs_to_lifted_tensor_constants.items()}
    return {name: tensor.detach() for name, tensor in {**found, **constants}.items() if isinstance(tensor, Tensor)}


def refuse_writes_to_views(graph: fx.Graph) -> None:
    """An operation in place becomes one that makes a new tensor; where the old one is seen through a view it can't.

    Raises:
        UnsupportedError: there is such an operation.
    """
    for node in graph.nodes:
        if not mutates(node):
            continue
        written = node.args[0]
        if is_view(written) or any(is_view(user) for user in written.users):
            raise UnsupportedError(f"{node.target} writes into a value that is also seen through a view")


def mutates(node: fx.Node) -> bool:
    """Whether an operation writes into its first argument."""
    return isinstance(node.target, torch._ops.OpOverload) and bool(node.target._schema.is_mutable)


def is_view(node: fx.Node) -> bool:
    """Whether an operation gives a window on its argument's memory."""
    if not isinstance(node.target, torch._ops.OpOverload) or mutates(node):
        return False
    return any(given.alias_info is not None for given in node.target._schema.returns)


def read(graph: Graph, node: fx.Node, tensors: dict[str, Tensor]) -> None:
    """Append one call of the exported program; an operation in place becomes the one that makes a new tensor."""
    added = Node("getitem" if node.target is operator.getitem else str(node.target).replace("_.", "."), [], node.name)
    added.attributes = {
        "args": encode(graph, added, node.args, tensors),
        "kwargs": encode(graph, added, dict(node.kwargs), tensors),
    }
    graph.nodes.append(added)
    answer = node.meta.get("val")
    if isinstance(answer, Tensor):
        graph.shapes[node.name] = [int(length) for length in answer.shape]


def encode(graph: Graph, node: Node, value: Any, tensors: dict[str, Tensor]) -> Any:
    """An argument as `Node.attributes` keeps it; the values and tensors in it are added to the node."""
    if isinstance(value, fx.Node) and value.name in tensors:
        role = f"t{len(node.tensors)}"
        node.tensors[role] = value.name
        graph.tensors[value.name] = tensors[value.name]
        return {"tensor": role}
    if isinstance(value, fx.Node):
        node.inputs.append(value.name)
        return {"input": len(node.inputs) - 1}
    if isinstance(value, list | tuple):
        return [encode(graph, node, part, tensors) for part in value]
    if isinstance(value, dict):
        return {key: encode(graph, node, part, tensors) for key, part in value.items()}
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    return {"device": True} if isinstance(value, torch.device) else value
