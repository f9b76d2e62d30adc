"""Further small nets: of two answers, a block with a stride, windows whose taps lie apart, windows in groups."""

import torch
from torch import Tensor, nn
from torch.nn import functional


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


class Shortcut(nn.Module):
    """A residual block with a stride, whose input reaches its end by a window of one pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, 2, 1)
        self.last, self.short = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(32, 64, 1, 2, bias=False)

    def forward(self, image: Tensor) -> Tensor:
        value = functional.relu(self.first(image))
        return functional.relu(self.last(functional.relu(self.down(value))) + self.short(value))


class FewInBlocks(nn.Module):
    """Residual blocks of few channels, with a norm before each window, as in SegResNet but for the norm's groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.InstanceNorm2d(16, affine=True) for _ in range(4)])
        self.convs = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(4)])
        self.head = nn.Conv2d(16, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        value = self.first(image)
        for block in (0, 2):
            here = self.convs[block](functional.relu(self.norms[block](value)))
            value = self.convs[block + 1](functional.relu(self.norms[block + 1](here))) + value
        logits: Tensor = self.head(functional.relu(value))
        return logits


class Dilated(nn.Module):
    """Windows whose taps lie apart, as in nets that keep their resolution: beside each other, before a norm, added."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 64, 3, padding=1)
        self.mixed = nn.Conv2d(64, 64, 1, dilation=2)
        self.second = nn.Sequential(nn.Conv2d(64, 64, 3, padding=2, dilation=2, bias=False), nn.BatchNorm2d(64))
        self.normed = nn.Sequential(nn.Conv2d(64, 32, 3, padding="same", dilation=4), nn.InstanceNorm2d(32))
        self.spread = nn.Conv2d(32, 32, 3, padding=4, dilation=4, groups=32, bias=False)
        self.wide = nn.ModuleList([nn.Conv2d(32, 16, 3, padding=apart, dilation=apart) for apart in (3, 6, 36)])
        self.last = nn.Sequential(nn.Conv2d(48, 24, 3, padding=2, dilation=2), nn.ReLU(), nn.Conv2d(24, 3, 1))

    def forward(self, image: Tensor) -> Tensor:
        first = functional.relu(self.mixed(functional.relu(self.first(image))))
        value = functional.silu(self.normed(functional.relu(self.second(first) + first)))
        value = functional.relu(self.spread(value))
        logits: Tensor = self.last(torch.cat([functional.relu(wide(value)) for wide in self.wide], dim=1))
        return logits


class Grouped(nn.Module):
    """As in ResNeXt and RegNet: windows in groups of several channels, added, before a norm, pooled, in odd groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 128, 3, padding=1)
        self.narrow = nn.Sequential(nn.Conv2d(128, 128, 3, padding=1, groups=32, bias=False), nn.BatchNorm2d(128))
        self.normed = nn.Sequential(nn.Conv2d(128, 128, 3, padding=1, groups=16), nn.InstanceNorm2d(128))
        self.wide = nn.Conv2d(128, 128, 3, padding=1, groups=2)
        self.down = nn.Conv2d(128, 128, 3, 2, 1, groups=4)
        self.short, self.odd = nn.Conv2d(128, 96, 1), nn.Conv2d(96, 96, 3, padding="same", groups=4)
        self.last = nn.Conv2d(96, 3, 1)

    def forward(self, image: Tensor) -> Tensor:
        first = functional.relu(self.first(image))
        value = functional.silu(self.normed(functional.relu(self.narrow(first) + first)))
        pooled = functional.max_pool2d(functional.relu(self.wide(value)), 2)
        logits: Tensor = self.last(functional.relu(self.odd(functional.relu(self.short(pooled + self.down(value))))))
        return logits


class Pix2Pix(nn.Module):
    """Windows of 4×4 that halve a map and double it, with batch and instance norms, as in pix2pix."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 4, 2, 1)
        self.second = nn.Sequential(nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32))
        self.third = nn.Sequential(nn.LeakyReLU(0.2), nn.Conv2d(32, 48, 4, 2, 1), nn.InstanceNorm2d(48))
        self.grow = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(48, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32))
        self.last = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(64, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 3, 1))

    def forward(self, image: Tensor) -> Tensor:
        second = self.second(self.first(image))
        logits: Tensor = self.last(torch.cat([self.grow(self.third(second)), second], 1))
        return logits


FURTHER = {
    "two answers": (Halves, (1, 3, 16, 16)),
    "strided shortcut": (Shortcut, (2, 3, 16, 12)),
    "blocks of few channels": (FewInBlocks, (2, 3, 18, 21)),
    "dilated": (Dilated, (2, 3, 17, 22)),
    "grouped": (Grouped, (2, 3, 14, 22)),
    "pix2pix": (Pix2Pix, (2, 3, 24, 40)),
}
