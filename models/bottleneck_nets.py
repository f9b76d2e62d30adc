"""Three networks with a known bottleneck each, which check the bottleneck that a run names.

Each takes [batch, 3, height, width] to logits [batch, 2, height, width].
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class ManyTinyLayers(nn.Module):
    """A network bound by overhead: over a hundred kernels, each done before the next launch. For small images."""

    def __init__(self, layers: int = 40, channels: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 1)
        self.layers = nn.ModuleList(nn.Conv2d(channels, channels, 1) for _ in range(layers))
        self.head = nn.Conv2d(channels, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Return logits [batch, 2, height, width] of an image [batch, 3, height, width]."""
        image = self.first(image)
        for layer in self.layers:
            image = image + layer(image).tanh()
        logits: Tensor = self.head(image)
        return logits


class WidePointwise(nn.Module):
    """A network bound by memory: operators that read and write a large image and compute almost nothing."""

    def __init__(self, steps: int = 12, channels: int = 64) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 1)
        self.scales = nn.ParameterList(torch.rand(1, channels, 1, 1) for _ in range(steps))
        self.activation = nn.ReLU6()
        self.head = nn.Conv2d(channels, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Return logits [batch, 2, height, width] of an image [batch, 3, height, width]."""
        image = self.first(image)
        for scale in self.scales:
            image = self.activation(image * scale + 0.5) + image
        logits: Tensor = self.head(image)
        return logits


class LargeChannels(nn.Module):
    """A network bound by compute: 3×3 convolutions of hundreds of channels at an eighth of the image's size."""

    def __init__(self, layers: int = 6, channels: int = 768) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, channels, 8, stride=8)
        self.layers = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(layers))
        self.head = nn.Conv2d(channels, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Return logits [batch, 2, height, width] of an image [batch, 3, height, width], both sides multiples of 8."""
        size = image.shape[-2:]
        image = self.patches(image)
        for layer in self.layers:
            image = functional.relu(layer(image))
        return functional.interpolate(self.head(image), size=size, mode="nearest")
