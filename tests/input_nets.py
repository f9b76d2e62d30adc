"""Tiny nets of several inputs, and of volumes, for tests of whatever calls them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.batch import Batch


class Conditioned(nn.Module):
    """Latents, a time step and hidden states to noise, named as diffusers names them; `scale` may be left out."""

    def __init__(self, channels: int = 4, width: int = 8, states: int = 6) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(channels, width, 3, padding=1), nn.Conv2d(width, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.time, self.attend = nn.Linear(2, width), nn.Linear(states, width)

    def forward(self, sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor, scale: float = 1.0) -> Tensor:
        angle = timestep.float()[:, None] / 1000
        when = self.time(torch.cat([angle.sin(), angle.cos()], 1).to(sample.dtype))
        known = self.attend(encoder_hidden_states).mean(1)
        hidden = self.norm(self.enter(sample)) + (when + known)[:, :, None, None]
        noise: Tensor = self.leave(functional.silu(hidden))
        return scale * noise


class Between(nn.Module):
    """A function of torch between two convolutions."""

    def __init__(
        self, function: Callable[[Tensor], Tensor], inner: int = 3, width: int = 8, volumes: bool = False
    ) -> None:
        super().__init__()
        layer = nn.Conv3d if volumes else nn.Conv2d
        self.function, self.body, self.head = function, layer(inner, width, 3, padding=1), layer(width, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.function(self.body(image)))


class Pair(nn.Module):
    """Two images of one place, as nets that look for changes take them: a U-Net of one level."""

    def __init__(self, channels: int = 3, classes: int = 2, width: int = 16) -> None:
        super().__init__()
        self.earlier, self.later = self.block(channels, width), self.block(channels, width)
        self.inner = nn.Sequential(nn.MaxPool2d(2), self.block(2 * width, 2 * width))
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.outer, self.head = self.block(3 * width, width), nn.Conv2d(width, classes, 1)

    @staticmethod
    def block(inner: int, outer: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU())

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        high = torch.cat([self.earlier(before), self.later(after)], 1)
        return self.head(self.outer(torch.cat([high, self.up(self.inner(high))], 1)))


class Masked(nn.Module):
    """An image, the number of what is looked for, and where to look: whole numbers and booleans among the inputs."""

    def __init__(self, channels: int = 3, kinds: int = 5, classes: int = 2, width: int = 16) -> None:
        super().__init__()
        self.seen, self.near = Pair.block(channels, width), Pair.block(1, width)
        self.wanted, self.last = nn.Embedding(kinds, width), Pair.block(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, image: Tensor, kind: Tensor, inside: Tensor) -> Tensor:
        """Logits [batch, classes, height, width]; 0 outside."""
        seen = self.seen(image) + self.wanted(kind)[:, :, None, None]
        hidden = self.last(torch.cat([seen, self.near(inside.to(image.dtype))], 1))
        return self.head(hidden).masked_fill(~inside, 0.0)


def of_conditioned(side: int = 16) -> Batch:
    parts = torch.randn(2, 4, side, side), torch.randint(1000, (2,)), torch.randn(2, 5, 6)
    return Batch(parts, ("sample", "timestep", "encoder_hidden_states"))


def of_pair(side: int = 16) -> Batch:
    return Batch((torch.rand(2, 3, side, side), torch.rand(2, 3, side, side)), ("before", "after"))


def of_masked(side: int = 16) -> Batch:
    parts = torch.rand(2, 3, side, side), torch.randint(5, (2,)), torch.rand(2, 1, side, side) > 0.3
    return Batch(parts, ("image", "kind", "inside"))


class Volumes(nn.Module):
    """A U-Net of one level for volumes: [batch, channels, depth, height, width] to logits of the same size."""

    def __init__(self, channels: int = 1, classes: int = 2, width: int = 4) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(channels, width, 3, padding=1), nn.BatchNorm3d(width), nn.ReLU())
        self.inner = nn.Sequential(nn.MaxPool3d(2), nn.Conv3d(width, width, 3, padding=1), nn.InstanceNorm3d(width))
        self.up, self.head = nn.ConvTranspose3d(width, width, 2, stride=2), nn.Conv3d(2 * width, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        outer = self.down(image)
        return self.head(torch.cat([outer, self.up(self.inner(outer))], 1))


class Larger(nn.Module):
    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4 * channels, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        """[batch, channels, 2 height, 2 width]."""
        return functional.pixel_shuffle(self.conv(image), 2)


# Nets of several inputs, and what they take.
SEVERAL: dict[str, tuple[Callable[[], nn.Module], Callable[..., Batch]]] = {
    "conditioned": (lambda: Conditioned(width=16), of_conditioned),
    "two images": (Pair, of_pair),
    "masked": (Masked, of_masked),
}
