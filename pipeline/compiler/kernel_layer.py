"""One operation of a kernel: its weights packed, its epilogue made, and run by a tile, the library or the reference."""

from collections.abc import Iterator
from enum import StrEnum

import torch
from torch import Tensor

from pipeline.compiler.graph import Graph, Node
from pipeline.compiler.ops import BY_NAME
from pipeline.compiler.quantize import DTYPES, Precision, quantised
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.common.kernel_op import NO_WEIGHT, LibraryParameters


class Backend(StrEnum):
    """How an operation can run other than by a tile of its kernel."""

    LIBRARY = "library"
    REFERENCE = "reference"


Choice = object  # a Backend, or a tile of the operation's kernel
NO_PARAMETERS = LibraryParameters(NO_WEIGHT, NO_WEIGHT)


class KernelLayer:
    """An operation of a kernel, ready for one precision and device.

    Attributes:
        op: the kernel.
        epilogue: what follows its sums; scales of fp8 are part of it.
        packed: the weight as the kernel reads it; empty where the choice is the library.
        parameters: weight and bias as the library reads them; empty where the choice is another.
        choice: how it runs; None runs the reference and keeps all weights, so that any way can be tried.
    """

    def __init__(
        self, node: Node, graph: Graph, precision: Precision, device: torch.device, choice: Choice | None = None
    ) -> None:
        self.op = BY_NAME[node.op]
        self.choice = choice
        self.compute_dtype = precision.compute
        stored = node.output or node.pooled
        out_scale = precision.scale(stored) if stored else 1.0
        rescale = precision.scale(node.inputs[0]) / out_scale
        self.packed, self.parameters = NO_WEIGHT, NO_PARAMETERS
        if self.op.pack is None:
            channels = graph.shapes[node.inputs[0]][1]
            self.epilogue = Epilogue(_scale(torch.full((channels,), rescale, device=device)))
            return
        weight, bias = graph.tensor(node, "weight").to(device), graph.tensor(node, "bias").to(device)
        packed, scale = self.op.pack(weight), torch.full((len(bias),), rescale, device=device)
        if node.inputs[0] in precision.fp8_values:
            packed, by_channel = quantised(packed, self.op.out_axis, summed=self.op.tap_axis)
            scale = scale * by_channel
        self.epilogue = Epilogue(
            scale=_scale(scale),
            bias=(bias / out_scale).float().contiguous(),
            activation=node.activation,
            pool=node.pooled is not None,
            head=_head(graph, node, device),
        )
        if choice != Backend.LIBRARY:
            self.packed = packed if packed.dtype == DTYPES["fp8"] else packed.to(self.compute_dtype)
        if choice in (None, Backend.LIBRARY):
            whole = weight.to(self.compute_dtype).contiguous(memory_format=torch.channels_last)
            self.parameters = LibraryParameters(whole, bias.to(self.compute_dtype))

    @property
    def weights(self) -> Tensor:
        """The weights, of any shape, that it reads as it runs; empty where it has none."""
        return self.packed if self.packed.numel() else self.parameters.weight

    def read(self, value: Tensor) -> Tensor:
        """A value [N, channels, H, W] as it is read: the image as it came, anything else in channels_last."""
        if self.op.reads_image:
            return value.float().contiguous()
        if value.dtype == DTYPES["fp8"]:
            return value
        cast = value.to(self.compute_dtype)
        return cast if cast.stride(1) == 1 else cast.contiguous(memory_format=torch.channels_last)

    def candidates(self, x: Tensor, outputs: Outputs) -> Iterator[Choice]:
        """What is worth measuring: the kernel's tiles, and the library where it computes the same.

        Args:
            x: [N, channels, H, W], as `read` gives it.
            outputs: out and pooled as [N, channels, H, W] in channels_last.
        """
        yield from self.op.candidates(self._seen(x), self.packed, self.epilogue)
        plain = all(part.dtype == self.compute_dtype for part in outputs.stored.values())
        if self.epilogue.scale is None and plain and x.dtype != DTYPES["fp8"]:
            yield Backend.LIBRARY

    def run(self, x: Tensor, outputs: Outputs, choice: Choice) -> None:
        """Write the outputs, by the tile, the library or the reference.

        Args:
            x: [N, channels, H, W], as `read` gives it.
            outputs: out and pooled as [N, channels, H, W] in channels_last.
            choice: one for which the weights were kept.
        """
        if choice == Backend.LIBRARY:
            self.op.library(x, self.parameters, self.epilogue, outputs)
        elif choice == Backend.REFERENCE:
            self.op.reference(self._seen(x), self.packed, self.epilogue, outputs.nhwc())
        else:
            self.op.launch(self._seen(x), self.packed, self.epilogue, outputs.nhwc(), choice)

    def _seen(self, x: Tensor) -> Tensor:
        """X as the kernel reads it: [N, H, W, channels], or the image as it is."""
        return x if self.op.reads_image else x.permute(0, 2, 3, 1)


def _scale(factors: Tensor) -> Tensor | None:
    return None if bool((factors == 1).all()) else factors.float().contiguous()


def _head(graph: Graph, node: Node, device: torch.device) -> Head | None:
    if node.logits is None:
        return None
    weight, bias = (graph.tensor(node, role).to(device).float().contiguous() for role in ("head_weight", "head_bias"))
    return Head(weight, bias)
