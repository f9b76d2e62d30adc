"""A net whose encoder is EfficientNet's: windows that begin late, depthwise layers, squeeze-and-excitation, adds."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Late(nn.Sequential):
    """A convolution of stride 2, padded by one more row below and column right, as TensorFlow's nets are; its norm."""

    def __init__(self, inner: int, outer: int, side: int, groups: int = 1) -> None:
        few, many = (side - 3) // 2, (side - 1) // 2
        padding = nn.ZeroPad2d((few, many, few, many))
        super().__init__(
            padding, nn.Conv2d(inner, outer, side, 2, groups=groups, bias=False), nn.BatchNorm2d(outer), nn.SiLU()
        )


class Squeezed(nn.Module):
    """A depthwise layer, the factors of its channels, and a 1×1 convolution of both: the end of a block."""

    def __init__(self, channels: int, outer: int, depthwise: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.depthwise, self.gate = depthwise, gate
        self.reduce, self.expand = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)
        self.project = nn.Sequential(nn.Conv2d(channels, outer, 1, bias=False), nn.BatchNorm2d(outer))

    def forward(self, image: Tensor) -> Tensor:
        value = self.depthwise(image)
        mean = (
            functional.adaptive_avg_pool2d(value, 1) if isinstance(self.gate, nn.Sigmoid) else value.mean((2, 3), True)
        )
        factors = self.gate(self.expand(functional.silu(self.reduce(mean))))
        projected: Tensor = self.project(factors * value)
        return projected


class InvertedResiduals(nn.Module):
    """Widths of 8 channels and no multiple of 16, up-sampled beside a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Late(3, 16, 3)
        grouped = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.SiLU())
        self.high = Squeezed(16, 24, grouped, nn.Sigmoid())
        self.wide = nn.Sequential(nn.Conv2d(24, 40, 1, bias=False), nn.BatchNorm2d(40), nn.SiLU())
        self.low = Squeezed(40, 24, Late(40, 40, 5, groups=40), nn.Hardsigmoid())
        self.again = Squeezed(
            24, 24, nn.Sequential(nn.Conv2d(24, 24, 5, padding=2, groups=24), nn.SiLU()), nn.Sigmoid()
        )
        self.up = nn.Sequential(nn.Conv2d(48, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        high = self.high(self.stem(image))
        low = self.low(self.wide(high))
        low = self.again(low) + low
        joined = torch.cat([functional.interpolate(low, scale_factor=2, mode="nearest"), high], dim=1)
        logits: Tensor = self.head(self.up(joined))
        return logits
