"""Makes a rewritten graph ready to run: one step an operation, each with its weights packed and its way chosen."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.profiler import record_function

from pipeline.compiler.graph import Graph, Node
from pipeline.compiler.kernel_layer import Choice, KernelLayer
from pipeline.compiler.ops import BY_NAME
from pipeline.compiler.quantize import Precision
from pipeline.compiler.steps import (
    KernelStep,
    Memory,
    Step,
    Values,
    already_joined,
    aten_operation,
    library_convolution,
)
from pipeline.records.chrome_trace import LAYER


class Program:
    """A graph made ready for one precision and device.

    Attributes:
        choices: for each kernel's operation a tile or a Backend; where none is named the reference runs, and the
            weights of all ways are kept.
        layers: the kernels' operations by name.
        steps: one for each node.
    """

    def __init__(
        self, graph: Graph, precision: Precision, device: torch.device, choices: Mapping[str, Choice] | None = None
    ) -> None:
        self.graph = graph
        self.precision = precision
        self.device = device
        self.choices = dict(choices or {})
        self.memory = Memory(graph, precision, device)
        self.layers = {
            node.name: KernelLayer(node, graph, precision, device, self.choices.get(node.name))
            for node in graph.nodes
            if node.op in BY_NAME
        }
        self.steps = [self._step(node) for node in graph.nodes]
        self.last_uses = last_uses(graph)

    def __call__(self, image: Tensor) -> Tensor:
        """The logits [batch, classes, height, width] in fp32 of a batch [batch, channels, height, width]."""
        values = {self.graph.input: image}
        for node, step, dying in zip(self.graph.nodes, self.steps, self.last_uses, strict=True):
            with record_function(f"{LAYER}{node.layer}"):
                step(values)
            for value in dying:
                values.pop(value, None)
        return values[self.graph.output]

    def all_values(self, image: Tensor) -> Values:
        """Every value of a call on a batch [batch, channels, height, width], by name."""
        values = {self.graph.input: image}
        for step in self.steps:
            step(values)
        return values

    def largest(self, image: Tensor) -> dict[str, float]:
        """The largest magnitude of every value that a kernel writes for a batch [batch, channels, height, width]."""
        values = self.all_values(image)
        written = [value for node in self.graph.nodes if node.op in BY_NAME for value in (node.output, node.pooled)]
        return {value: float(values[value].float().abs().max()) for value in written if value}

    def moved(self, image: Tensor) -> int:
        """Bytes that the operations of a call on a batch [batch, channels, height, width] read and write.

        Values count once for each operation, weights once.
        """
        values = self.all_values(image)
        working = [node for node in self.graph.nodes if node.op != "joined"]
        parts = [values[value] for node in working for value in [*node.inputs, *node.writes]]
        packed = [layer.weights for layer in self.layers.values()]
        others = [
            self.graph.tensors[key] for node in working if node.op not in BY_NAME for key in node.tensors.values()
        ]
        moved = sum(part.numel() * part.element_size() for part in [*parts, *packed] if isinstance(part, Tensor))
        return moved + sum(part.numel() for part in others) * self.precision.compute.itemsize

    def _step(self, node: Node) -> Step:
        if node.op in BY_NAME:
            return KernelStep(node, self.layers[node.name], self.memory)
        if node.op == "joined":
            return already_joined
        make = library_convolution if node.op in ("conv2d", "conv_transpose2d") else aten_operation
        return make(node, self.graph, self.memory)


def last_uses(graph: Graph) -> list[list[str]]:
    """For each node the values that nobody reads after it, so that their memory serves again."""
    readers: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        readers |= dict.fromkeys([*node.inputs, *node.writes], index)
    for part, (wide, _) in graph.places.items():
        readers[part] = max(readers[part], readers[wide])
    readers.pop(graph.output, None)
    return [[value for value, last in readers.items() if last == index] for index in range(len(graph.nodes))]
