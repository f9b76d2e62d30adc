"""Networks whose channels meet in every way that slices follow, and ones that can't be sliced."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Meeting(nn.Module):
    """A sum, a concatenation, a convolution for each channel, a gate and an upsampling."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.norm = nn.BatchNorm2d(32)
        self.each = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.inner = nn.Sequential(nn.Conv2d(32, 64, 1), nn.PReLU(64), nn.Conv2d(64, 32, 1))
        self.gate = nn.Conv2d(32, 32, 1)
        self.down = nn.Conv2d(32, 48, 3, 2, 1)
        self.up = nn.ConvTranspose2d(48, 24, 2, 2)
        self.scale = nn.Parameter(torch.rand(1, 24, 1, 1))
        self.mix = nn.Conv2d(56, 16, 1)
        self.several = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.head = nn.Conv2d(16, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        found = functional.relu(self.norm(self.first(image)))
        found = found + self.inner(self.each(found))
        found = found * torch.sigmoid(self.gate(functional.adaptive_avg_pool2d(found, 1)))
        return self.head(
            self.several(self.mix(torch.cat([found, self.scale * self.up(functional.relu(self.down(found)))], 1)))
        )


class Normed(nn.Module):
    """Weights that the network computes, which no file holds by their channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 32, 3, padding=1))
        self.head = nn.Conv2d(32, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(functional.relu(self.first(image)))


class Turned(nn.Module):
    """Channels become pixels and back, which no slice follows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 32, 1), nn.Conv2d(32, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        found = self.first(image).flatten(2).transpose(1, 2)
        return self.head(found.softmax(1).transpose(1, 2).unflatten(2, image.shape[2:]))
