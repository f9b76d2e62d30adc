"""Nets that join values more than once, as DenseNet, UNet++ and others do."""

import torch
from torch import Tensor, nn
from torch.nn import functional


def conv(inner: int, outer: int = 16) -> nn.Conv2d:
    """A layer that a kernel takes."""
    return nn.Conv2d(inner, outer, 3, padding=1)


class NewestFirst(nn.Module):
    """Each layer reads all values before it, the newest first, as each level of UNet++ does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([conv(3), *(conv(16 * count) for count in range(1, 5))])

    def forward(self, image: Tensor) -> Tensor:
        first, *rest, last = self.layers
        values = [first(image).relu()]
        for layer in rest:
            values.insert(0, layer(torch.cat(values, 1)).relu())
        logits: Tensor = last(torch.cat(values, 1))
        return logits


class NewestLast(nn.Module):
    """Each layer norms all values before it, the newest last, as DenseNet's blocks do; a pool makes the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = conv(3)
        self.layers = nn.ModuleList([conv(16 * count) for count in range(1, 4)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(16 * count) for count in range(1, 4)])

    def forward(self, image: Tensor) -> Tensor:
        values = [functional.max_pool2d(self.first(image).relu(), 2)]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            values.append(layer(norm(torch.cat(values, 1)).relu()))
        return values[-1]


class Shared(nn.Module):
    """A skip that two concatenations want, which have no order in common, each beside an up-sampling of Inductor's."""

    def __init__(self) -> None:
        super().__init__()
        self.skip, self.low, self.lower = conv(3), conv(16), conv(16)
        self.once, self.again = conv(32), conv(48)

    def forward(self, image: Tensor) -> Tensor:
        skip = self.skip(image).relu()
        once = self.once(torch.cat([self.grown(self.low, skip), skip], 1)).relu()
        logits: Tensor = self.again(torch.cat([self.grown(self.lower, once), once, skip], 1))
        return logits

    @staticmethod
    def grown(low: nn.Module, value: Tensor) -> Tensor:
        """A value once it was half as large; the activation keeps the up-sampling out of the layer after it."""
        half = low(functional.max_pool2d(value, 2))
        return functional.relu6(functional.interpolate(half, scale_factor=2.0, mode="nearest"))
