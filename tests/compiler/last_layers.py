"""Nets of a norm whose last layers are unlike the others: of two channels, or logits that read a norm."""

from torch import Tensor, nn
from torch.nn import functional


class Few(nn.Module):
    """A norm that two layers read, and a last level of two channels, as MONAI's nets have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 32, 3, padding=1), nn.InstanceNorm2d(32)
        self.grow = nn.ConvTranspose2d(32, 2, 3, stride=2, padding=1, output_padding=1)
        self.beside = nn.ConvTranspose2d(32, 2, 3, stride=2, padding=1, output_padding=1)
        self.last = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        value = functional.leaky_relu(self.norm(self.first(image)))
        large = functional.leaky_relu(self.grow(value))
        logits: Tensor = self.last(large) + large + self.beside(value)
        return logits


def normed_head() -> nn.Module:
    """Norms up to the logits, as nnU-Net has."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.InstanceNorm2d(32, affine=True),
        nn.LeakyReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.InstanceNorm2d(64, affine=True),
        nn.LeakyReLU(),
        nn.ConvTranspose2d(64, 32, 3, stride=2, padding=1, output_padding=1),
        nn.InstanceNorm2d(32),
        nn.LeakyReLU(),
        nn.Conv2d(32, 3, 1),
    )
