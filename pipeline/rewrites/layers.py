"""How each of our operations runs: by the project's kernel, by the library, or by the kernel's reference."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels import conv1x1, conv3x3, conv3x3_first, upconv2x2, upsample2x
from pipeline.kernels.conv3x3_operands import Head
from pipeline.rewrites.graph import Graph, Node
from pipeline.rewrites.precision import DTYPES, Precision, quantised

KERNEL, LIBRARY, REFERENCE = "kernel", "library", "reference"  # the first for a kernel that has no tiles
MODULES: dict[str, Any] = {
    "conv3x3": conv3x3,
    "conv3x3_first": conv3x3_first,
    "conv1x1": conv1x1,
    "upconv2x2": upconv2x2,
}
OUT_AXIS = {"conv3x3": 1, "conv1x1": 0, "upconv2x2": 1}  # of the packed weights


@dataclass
class Outputs:
    """Where an operation writes; all [batch, channels, height, width] in channels_last, the logits contiguous."""

    out: Tensor | None
    pooled: Tensor | None
    logits: Tensor | None


def nhwc(value: Tensor) -> Tensor:
    """A value as the kernels see it: [batch, height, width, channels], channels side by side."""
    return value.permute(0, 2, 3, 1)


class Layer:
    """One of our operations with its weights packed for the precision that it runs in."""

    def __init__(self, node: Node, graph: Graph, precision: Precision, device: torch.device) -> None:
        self.node = node
        self.op = node.op
        self.relu = bool(node.attributes.get("relu", False))
        self.alpha: Tensor | None = None
        out_scale = precision.scale(str(node.output or node.pooled)) if node.output or node.pooled else 1.0
        in_scale = precision.scale(node.inputs[0])
        self.rescale = in_scale / out_scale
        if node.op == "upsample2x":
            return
        weight, bias = graph.parameter(node, "weight"), graph.parameter(node, "bias")
        assert weight is not None
        assert bias is not None
        packed = MODULES[node.op].pack(weight.to(device))
        factor = torch.full((len(bias),), self.rescale, device=device)
        if node.inputs[0] in precision.eighths:
            packed, per_channel = quantised(packed, OUT_AXIS[node.op], summed=0 if node.op == "conv3x3" else None)
            factor = factor * per_channel
        work = DTYPES[precision.work]
        self.packed = packed if packed.dtype == DTYPES["fp8"] else packed.to(work)
        self.alpha = None if bool((factor == 1).all()) else factor.float().contiguous()
        self.beta = (bias.to(device) / out_scale).float().contiguous()
        self.work = work
        self.whole: Tensor | None = weight.to(device, work).contiguous(memory_format=torch.channels_last)
        self.bias = bias.to(device, work)
        self.head_weight, self.head_bias = (self._on(graph, role, device) for role in ("head_weight", "head_bias"))

    def _on(self, graph: Graph, role: str, device: torch.device) -> Tensor | None:
        part = graph.parameter(self.node, role)
        return None if part is None else part.to(device).float().contiguous()

    def candidates(self, x: Tensor, outputs: Outputs) -> Iterator[Any]:
        """What is worth measuring: the kernel's tiles, and the library where it computes the same."""
        if self.op == "upsample2x":
            yield KERNEL
            if x.dtype == torch.float16 and outputs.out is not None and outputs.out.dtype == x.dtype:
                yield LIBRARY
            return
        if self.op == "conv3x3":
            yield from conv3x3.candidates(nhwc(x), self.packed.shape[1], head=outputs.logits is not None)
        elif self.op == "conv3x3_first":
            yield from conv3x3_first.candidates(self.packed.shape[1])
        else:
            yield from MODULES[self.op].candidates(nhwc(x), self.packed.shape[OUT_AXIS[self.op]])
        written = [part for part in (outputs.out, outputs.pooled) if part is not None]
        if self.alpha is None and all(part.dtype == self.work for part in written):
            yield LIBRARY

    @property
    def weights(self) -> Tensor | None:
        """The weights that it reads as it runs; None where it has none."""
        if self.op == "upsample2x":
            return None
        return self.packed if self.packed.numel() else self.whole

    def settle_for(self, choice: Any) -> None:
        """Drop the weights that this way of running doesn't read; no other can be run from now on."""
        if self.op == "upsample2x":
            return
        if choice == LIBRARY:
            self.packed = self.packed.new_empty(0)
        else:
            self.whole = None

    def run(self, x: Tensor, outputs: Outputs, choice: Any) -> None:
        """Write the outputs, by the tile, the library or the reference that `choice` says."""
        if choice == LIBRARY:
            self._library(x, outputs)
        else:
            self._ours(x, outputs, choice)

    def _ours(self, x: Tensor, outputs: Outputs, choice: Any) -> None:
        """The kernel with a tile, or its reference."""
        out = None if outputs.out is None else nhwc(outputs.out)
        if self.op == "upsample2x":
            assert out is not None
            (upsample2x.reference if choice == REFERENCE else upsample2x.upsample2x)(nhwc(x), out, scale=self.rescale)
            return
        extra = {} if choice == REFERENCE else {"tile": choice}
        module = MODULES[self.op]
        call: Callable[..., None] = module.reference if choice == REFERENCE else getattr(module, self.op)
        if self.op == "conv3x3":
            pooled = None if outputs.pooled is None else nhwc(outputs.pooled)
            head = None
            if outputs.logits is not None:
                assert self.head_weight is not None
                assert self.head_bias is not None
                head = Head(self.head_weight, self.head_bias, outputs.logits)
            call(
                nhwc(x),
                self.packed,
                self.beta,
                out,
                alpha=self.alpha,
                relu=self.relu,
                pooled=pooled,
                head=head,
                **extra,
            )
        elif self.op == "upconv2x2":
            call(nhwc(x), self.packed, self.beta, out, alpha=self.alpha, **extra)
        else:
            image = x if self.op == "conv3x3_first" else nhwc(x)
            call(image, self.packed, self.beta, out, alpha=self.alpha, relu=self.relu, **extra)

    def _library(self, x: Tensor, outputs: Outputs) -> None:
        """The library's own operation, and copies into the places that ours would have written."""
        if self.op == "upsample2x":
            assert outputs.out is not None
            outputs.out.copy_(functional.interpolate(x, scale_factor=2, mode="bilinear"))
            return
        assert self.whole is not None
        x = x.to(self.work, memory_format=torch.channels_last)
        if self.op == "upconv2x2":
            y = functional.conv_transpose2d(x, self.whole, self.bias, stride=2)
        else:
            padding = self.whole.shape[2] // 2
            y = convolution(x, self.whole, self.bias, self.relu, padding=[padding, padding])
        if outputs.out is not None:
            outputs.out.copy_(y)
        if outputs.pooled is not None:
            outputs.pooled.copy_(functional.max_pool2d(y, 2))
        if outputs.logits is not None:
            assert self.head_weight is not None
            assert self.head_bias is not None
            weight = self.head_weight.to(y.dtype)[..., None, None]
            outputs.logits.copy_(functional.conv2d(y, weight, self.head_bias.to(y.dtype)))


def convolution(
    x: Tensor, weight: Tensor, bias: Tensor, relu: bool, *, stride: Any = (1, 1), padding: Any = (0, 0),
    dilation: Any = (1, 1), groups: int = 1,
) -> Tensor:  # fmt: skip
    """The library's convolution with bias and activation: in one kernel on a GPU, in fp16 and with a ReLU."""
    if relu and x.is_cuda and x.dtype == torch.float16:
        fused: Tensor = torch.cudnn_convolution_relu(
            x, weight, bias, list(stride), list(padding), list(dilation), groups
        )
        return fused
    y = torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    return y.relu_() if relu else y
