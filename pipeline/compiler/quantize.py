"""In which precision each value is stored, and with which scale: fp8 where every reader takes it, else fp16."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pipeline.compiler.graph import Graph, Node
from pipeline.compiler.ops import KERNELS
from pipeline.kernels.common.nhwc import FP8_MAX

READS_FP8 = {op.name for op in KERNELS if "fp8" in op.reads}
WRITES_FP8 = {op.name for op in KERNELS if "fp8" in op.writes}
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}


@dataclass
class Precision:
    """How values are stored.

    Attributes:
        compute_dtype: of everything that isn't fp8: "fp16" on a GPU, "fp32" for the reference on a CPU.
        fp8_values: the values stored in fp8 (e4m3).
        scales: of each of those: stored value × scale = value.
    """

    compute_dtype: str = "fp16"
    fp8_values: set[str] = field(default_factory=set)
    scales: dict[str, float] = field(default_factory=dict)

    def dtype(self, value: str) -> torch.dtype:
        """The type in which a value is stored."""
        return DTYPES["fp8" if value in self.fp8_values else self.compute_dtype]

    @property
    def compute(self) -> torch.dtype:
        """The type of everything that isn't fp8."""
        return DTYPES[self.compute_dtype]

    def scale(self, value: str) -> float:
        """By which a stored value is to be multiplied; 1 outside fp8."""
        return self.scales[value] if value in self.fp8_values else 1.0


def fp8_values(graph: Graph, keep: Iterable[str]) -> set[str]:
    """The values that can be stored in fp8 when the operations named in `keep` read fp16."""
    kept = set(keep)
    written = {value for node in graph.nodes if node.op in WRITES_FP8 for value in (node.output, node.pooled) if value}
    joined = {wide for wide, _ in graph.places.values()}
    found = {value for value in written | joined if value != graph.output}
    while True:
        refused = {value for value in found if not all(takes_fp8(node, found, kept) for node in graph.users(value))}
        for node in graph.nodes:
            together = {value for value in (node.output, node.pooled) if value}
            if node.op in WRITES_FP8 and together & found and not together <= found:
                refused |= together  # one kernel stores both in one type
        for part, (wide, _) in graph.places.items():
            if part not in found or wide not in found:
                refused |= {part, wide}  # one buffer has one type
        if not refused & found:
            return found
        found -= refused


def takes_fp8(node: Node, found: set[str], kept: set[str]) -> bool:
    """Whether a reader takes fp8: a kernel's operation that isn't kept, or a join whose buffer is fp8."""
    if node.op == "joined":
        return str(node.output) in found
    return node.op in READS_FP8 and node.name not in kept


def scales(graph: Graph, largest: dict[str, float]) -> dict[str, float]:
    """Per-tensor scales that put the largest magnitude seen at the end of e4m3; the parts of a join share one."""
    shared = dict(largest)
    for part, (wide, _) in graph.places.items():
        shared[wide] = max(shared.get(wide, 0.0), largest[part])
    for part, (wide, _) in graph.places.items():
        shared[part] = shared[wide]
    for node in graph.nodes:
        if node.pooled and node.output in shared:
            shared[node.pooled] = shared[node.output]  # one kernel stores both with one scale
    return {value: max(amount, 1e-12) / FP8_MAX for value, amount in shared.items()}


def quantised(weight: Tensor, axis: int, summed: int | None = None) -> tuple[Tensor, Tensor]:
    """A weight in e4m3 and the scale of each output channel, which lies along `axis`.

    Args:
        weight: of any shape, packed as its kernel wants it.
        axis: of the output channels.
        summed: the axis of a window's taps, if it has one. In flat parts of an image all taps of a channel see the same
            value, so what counts is the sum of their rounding errors: each tap takes over the errors of those before
            it, the largest first. On the shipped net in fp8 weights and exact activations that took the logits from
            1.5e-2 to 4.9e-3 (relative L2).
    """
    others = [dim for dim in range(weight.ndim) if dim != axis]
    scale = weight.abs().amax(others).clamp_min(1e-12) / FP8_MAX
    shape = [1] * weight.ndim
    shape[axis] = -1
    scaled = weight / scale.reshape(shape)
    return (rounded(scaled) if summed is None else rounded_together(scaled, summed)), scale


def rounded(value: Tensor) -> Tensor:
    """A tensor of any shape in e4m3, saturating."""
    return value.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def rounded_together(value: Tensor, dim: int) -> Tensor:
    """A tensor of any shape in e4m3, its sum along `dim` kept as near as the rounding of the smallest part allows."""
    order = value.abs().argsort(dim, descending=True)
    carried = torch.zeros_like(value.select(dim, 0))
    parts = []
    for part in value.gather(dim, order).unbind(dim):
        parts.append(rounded(part + carried).float())
        carried = part + carried - parts[-1]
    together = torch.stack(parts, dim)
    return torch.empty_like(together).scatter_(dim, order, together).to(torch.float8_e4m3fn)
