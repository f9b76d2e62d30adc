"""A net as a list of operations on values, small enough to rewrite, to write to a file and to read again.

It comes from torch.export, so every operation is an ATen one until a pass gives it to a kernel. Values are images
[batch, channels, height, width] (or whatever an ATen operation gives); the kernels keep them in channels_last.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pipeline.kernels.common.activation import Activation


class UnsupportedError(Exception):
    """A net that can't be rewritten, the reason in one line: torch can't export it, or names what no operation is."""


@dataclass
class Node:
    """One operation.

    Attributes:
        op: "aten.relu.default" and the like, or the name of a kernel of `ops.KERNELS`; "conv2d" and
            "conv_transpose2d" are convolutions for the library, "joined" is a concatenation that has happened already.
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

    @property
    def activation(self) -> Activation:
        """What a convolution ends in."""
        return Activation(self.attributes.get("activation", "none"), self.attributes.get("slope", 0.0))

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

    def tensor(self, node: Node, role: str) -> Tensor:
        """A node's tensor, of any shape: a convolution's weight [out, in, k, k] or bias [out], or a head's."""
        return self.tensors[node.tensors[role]]

    def put(self, node: Node, **parts: Tensor) -> None:
        """Give a node tensors of its own, of any shapes, by role."""
        node.tensors = {role: f"{node.name}.{role}" for role in parts}
        self.tensors.update({f"{node.name}.{role}": part for role, part in parts.items()})

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
