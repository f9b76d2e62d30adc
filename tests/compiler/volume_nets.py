"""Small nets for volumes: as nnU-Net and MONAI build them."""

import torch
from torch import Tensor, nn
from torch.nn import functional

Axes = tuple[int, int, int]


class PlainVolumes(nn.Module):
    """Instance norms, a strided convolution, a transposed one beside a skip, a head of 1×1×1: as nnU-Net's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.block(1, 32)
        self.high = self.block(32, 32)
        self.down = self.block(32, 48, stride=2)
        self.low = self.block(48, 48)
        self.grow = nn.ConvTranspose3d(48, 32, 2, stride=2)
        self.last = self.block(64, 24)
        self.head = nn.Conv3d(24, 3, 1)

    @staticmethod
    def block(inner: int, outer: int, stride: int = 1) -> nn.Sequential:
        norm = nn.InstanceNorm3d(outer, affine=True)
        return nn.Sequential(nn.Conv3d(inner, outer, 3, stride, 1), norm, nn.LeakyReLU(0.01, inplace=True))

    def forward(self, volume: Tensor) -> Tensor:
        high = self.high(self.first(volume))
        grown = self.grow(self.low(self.down(high)))
        logits: Tensor = self.head(self.last(torch.cat([grown, high], dim=1)))
        return logits


class ResidualVolumes(nn.Module):
    """Batch and group norms, PReLU, residuals, pools, up-sampling, a factor for each channel, an odd depth."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(8, 64, 3, padding="same", bias=False), nn.BatchNorm3d(64), nn.PReLU(64))
        self.second = nn.Conv3d(64, 64, 3, padding=1)
        self.norm = nn.GroupNorm(4, 64)
        self.mix = nn.Conv3d(64, 16, 1)
        self.last = nn.Sequential(nn.Conv3d(80, 16, 3, padding=1), nn.ReLU())
        self.wide = nn.Conv3d(16, 8, (1, 5, 5), padding=(0, 2, 2))

    def forward(self, volume: Tensor) -> Tensor:
        high = self.first(volume)
        value = functional.silu(self.norm(self.second(high) + high))
        low = self.mix(functional.max_pool3d(value, (1, 2, 2)))
        gate = low.mean((2, 3, 4), keepdim=True).sigmoid()
        grown = functional.interpolate(low * gate, size=high.shape[2:], mode="nearest")
        logits: Tensor = self.wide(self.last(torch.cat([grown, value], dim=-4)))
        return logits


class FlatVolumes(nn.Module):
    """Windows and strides within slices, as nnU-Net's and MONAI's nets have where slices are far from each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.block(1, 32, (1, 3, 3))
        self.high = self.block(32, 64, (1, 3, 3))
        self.mixed = nn.Conv3d(64, 64, (1, 3, 3), padding="same")
        self.down = self.block(64, 48, (1, 3, 3), (1, 2, 2))
        self.low = self.block(48, 48, (3, 3, 3))
        self.grow = nn.ConvTranspose3d(48, 32, (1, 2, 2), (1, 2, 2))
        self.last = self.block(96, 24, (1, 3, 3))
        self.head = nn.Conv3d(24, 3, 1)

    @staticmethod
    def block(inner: int, outer: int, window: Axes, stride: Axes = (1, 1, 1)) -> nn.Sequential:
        conv = nn.Conv3d(inner, outer, window, stride, (window[0] // 2, window[1] // 2, window[2] // 2))
        return nn.Sequential(conv, nn.InstanceNorm3d(outer, affine=True), nn.LeakyReLU(0.01, inplace=True))

    def forward(self, volume: Tensor) -> Tensor:
        high = self.high(self.first(volume))
        high = functional.relu(self.mixed(high) + high)
        grown = self.grow(self.low(self.down(high)))
        logits: Tensor = self.head(self.last(torch.cat([grown, high], dim=1)))
        return logits


def strided_in_slices() -> nn.Module:
    """As nnU-Net's second level where slices are somewhat further apart than pixels: a window of 3×3×3."""
    down = nn.Conv3d(16, 32, 3, (1, 2, 2), 1)
    return nn.Sequential(nn.Conv3d(8, 16, 3, padding=1), nn.ReLU(), down, nn.InstanceNorm3d(32), nn.ReLU())


VOLUMES = {
    "volumes, a stride within slices": (strided_in_slices, (2, 8, 3, 32, 6)),
    "volumes of slices far apart": (FlatVolumes, (2, 1, 3, 16, 12)),
    "volumes": (PlainVolumes, (2, 1, 4, 16, 12)),
    "volumes, residuals, an odd depth": (ResidualVolumes, (1, 8, 3, 16, 24)),
}
