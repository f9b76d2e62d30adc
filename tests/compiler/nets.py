"""Nets that are built otherwise than the classic one, small enough for a test."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.unet import UNet
from pipeline.compiler.graph import Graph
from pipeline.compiler.lowering import Program
from pipeline.compiler.quantize import Precision
from pipeline.compiler.torch_export import trace

CPU = torch.device("cpu")


class Residual(nn.Module):
    """A strided stem, residual blocks, nearest upsampling and concatenation, as nets with a ResNet encoder have."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.first = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
        self.down = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32))
        self.short = nn.Sequential(nn.Conv2d(16, 32, 1, 2, bias=False), nn.BatchNorm2d(32))
        self.up = nn.Sequential(nn.Conv2d(48, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.head = nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        stem = self.stem(image)
        high = functional.relu(self.first(stem) + stem)
        low = functional.relu(self.down(high) + self.short(high))
        joined = torch.cat([functional.interpolate(low, scale_factor=2, mode="nearest"), high], dim=1)
        logits: Tensor = self.head(functional.interpolate(self.up(joined), scale_factor=2, mode="nearest"))
        return logits


class Instance(nn.Module):
    """Instance norm, leaky ReLU, dropout, padding that does nothing, biases: as MONAI's nets have."""

    def __init__(self) -> None:
        super().__init__()
        self.high = self.block(3, 16)
        self.low = self.block(16, 32)
        self.grow = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.last = self.block(32, 16)
        self.head = nn.Conv2d(16, 2, 1)

    @staticmethod
    def block(inner: int, outer: int) -> nn.Sequential:
        norm = nn.InstanceNorm2d(outer, affine=True)
        return nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1), norm, nn.Dropout(0.5), nn.LeakyReLU(0.1))

    def forward(self, image: Tensor) -> Tensor:
        high = self.high(image)
        grown = self.grow(self.low(functional.max_pool2d(high, 2)))
        grown = functional.pad(
            grown, [0, high.shape[3] - grown.shape[3], 0, high.shape[2] - grown.shape[2]], "replicate"
        )
        logits: Tensor = self.head(self.last(torch.cat([high, grown], dim=1)))
        return logits


class Halves(nn.Module):
    """An operation with two answers, and one in place whose argument is used again."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 32, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        value = self.conv(image)
        functional.relu_(value)
        left, right = value.chunk(2, dim=1)
        product: Tensor = left * right
        return product


def lively(net: nn.Module) -> nn.Module:
    """The net in eval mode, its batch norms as training leaves them: not the identity."""
    generator = torch.Generator().manual_seed(7)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            size = layer.weight.shape
            layer.running_mean = 0.3 * torch.randn(size, generator=generator)
            layer.running_var = 0.5 + torch.rand(size, generator=generator)
            layer.weight.data = 0.5 + torch.rand(size, generator=generator)
            layer.bias.data = 0.2 * torch.randn(size, generator=generator)
    return net.eval()


def classic(**options: Any) -> nn.Module:
    """The classic net of 16 channels and two levels, unless told otherwise."""
    return lively(UNet(**{"base": 16, "depth": 2, **options}))


def image(*size: int) -> Tensor:
    """A batch that is the same each time."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(1))


def traced(net: nn.Module, batch: Tensor) -> Graph:
    """The net's graph, untouched."""
    with torch.no_grad():
        return trace(net, batch)


def error(graph: Graph, net: nn.Module, batch: Tensor) -> float:
    """Relative L2 distance between the graph, run by fp32 references, and the net."""
    with torch.no_grad():
        want, got = net(batch), Program(graph, Precision("fp32"), CPU)(batch)
    assert got.shape == want.shape
    return float((got - want).norm() / want.norm())


def ending_in(net: nn.Module, make: Callable[[], nn.Module]) -> nn.Module:
    """The net with every ReLU replaced."""
    for parent in list(net.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, nn.ReLU):
                setattr(parent, name, make())
    return net
