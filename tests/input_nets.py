"""Tiny nets of several inputs, and of volumes, for tests of whatever calls them."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Conditioned(nn.Module):
    """Latents, a time step and hidden states to noise, named as diffusers names them; `scale` may be left out."""

    def __init__(self, channels: int = 4, width: int = 8, states: int = 6) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(channels, width, 3, padding=1), nn.Conv2d(width, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.time, self.attend = nn.Linear(2, width), nn.Linear(states, width)

    def forward(self, sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor, scale: float = 1.0) -> Tensor:
        """Noise [batch, channels, height, width]."""
        angle = timestep.float()[:, None] / 1000
        when = self.time(torch.cat([angle.sin(), angle.cos()], 1).to(sample.dtype))
        known = self.attend(encoder_hidden_states).mean(1)
        hidden = self.norm(self.enter(sample)) + (when + known)[:, :, None, None]
        noise: Tensor = self.leave(functional.silu(hidden))
        return scale * noise


class Volumes(nn.Module):
    """A U-Net of one level for volumes: [batch, channels, depth, height, width] to logits of the same size."""

    def __init__(self, channels: int = 1, classes: int = 2, width: int = 4) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(channels, width, 3, padding=1), nn.BatchNorm3d(width), nn.ReLU())
        self.inner = nn.Sequential(nn.MaxPool3d(2), nn.Conv3d(width, width, 3, padding=1), nn.InstanceNorm3d(width))
        self.up, self.head = nn.ConvTranspose3d(width, width, 2, stride=2), nn.Conv3d(2 * width, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Logits [batch, classes, depth, height, width]."""
        outer = self.down(image)
        logits: Tensor = self.head(torch.cat([outer, self.up(self.inner(outer))], 1))
        return logits


class Larger(nn.Module):
    """Super-resolution: an image twice as large as its input."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4 * channels, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        """[batch, channels, 2 height, 2 width]."""
        return functional.pixel_shuffle(self.conv(image), 2)
