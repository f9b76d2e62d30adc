"""More U-Nets of papers: layers that run several times, gates, parallel dilations, and maps that are warped."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.benchmarks.research_nets import block, halved, twice


class Recurrent(nn.Module):
    """One layer, run three times on the image and what it gave before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = block(width, width)

    def forward(self, image: Tensor) -> Tensor:
        value: Tensor = self.layer(image)
        for _ in range(2):
            value = self.layer(image + value)
        return value


def recurrent(width: int) -> nn.Sequential:
    return nn.Sequential(Recurrent(width), Recurrent(width))


class R2UNet(nn.Module):
    """R2U-Net: recurrent layers with residuals. Alom et al. (2018), figures 3 and 4."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        self.widen = nn.ModuleList(nn.Conv2d(inner, outer, 1) for inner, outer in pairwise((3, *widths)))
        self.encoder = nn.ModuleList(map(recurrent, widths))
        self.up = nn.ModuleList(
            nn.Sequential(
                nn.Upsample(scale_factor=2), nn.Conv2d(wide, small, 3, padding=1), nn.BatchNorm2d(small), nn.ReLU()
            )
            for small, wide in pairwise(widths)
        )
        self.join = nn.ModuleList(nn.Conv2d(2 * width, width, 1) for width in widths[:-1])
        self.decoder = nn.ModuleList(map(recurrent, widths[:-1]))
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Logits [batch, 2, height, width] of an image [batch, 3, height, width] of a size that 8 divides."""
        value, skips = image, list[Tensor]()
        for widen, level in zip(self.widen, self.encoder, strict=True):
            value = widen(halved(value) if skips else value)
            value = value + level(value)
            skips.append(value)
        decoder = zip(self.up, self.join, self.decoder, skips[:-1], strict=True)
        for up, join, level, skip in reversed([*decoder]):
            value = join(torch.cat([skip, up(value)], 1))
            value = value + level(value)
        logits: Tensor = self.head(value)
        return logits


class Gate(nn.Module):
    """Weights each pixel of a skip by what the decoder's map says of it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.asked = nn.Sequential(nn.Conv2d(width, width // 2, 1), nn.BatchNorm2d(width // 2))
        self.shown = nn.Sequential(nn.Conv2d(width, width // 2, 1), nn.BatchNorm2d(width // 2))
        self.weight = nn.Sequential(nn.Conv2d(width // 2, 1, 1), nn.BatchNorm2d(1), nn.Sigmoid())

    def forward(self, value: Tensor, skip: Tensor) -> Tensor:
        gated: Tensor = skip * self.weight(functional.relu(self.asked(value) + self.shown(skip)))
        return gated


class GatedUNet(nn.Module):
    """Attention U-Net, as most copies write its gates for images. Oktay et al. (2018), figures 1 and 2."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512)) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(twice(inner, outer) for inner, outer in pairwise((3, *widths)))
        self.up = nn.ModuleList(
            nn.Sequential(nn.Upsample(scale_factor=2), block(wide, small)) for small, wide in pairwise(widths)
        )
        self.gates = nn.ModuleList(map(Gate, widths[:-1]))
        self.decoder = nn.ModuleList(twice(2 * width, width) for width in widths[:-1])
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Logits [batch, 2, height, width] of an image [batch, 3, height, width] of a size that 8 divides."""
        skips = [self.encoder[0](image)]
        for level in self.encoder[1:]:
            skips.append(level(halved(skips[-1])))
        value = skips.pop()
        for up, gate, level, skip in reversed([*zip(self.up, self.gates, self.decoder, skips, strict=True)]):
            value = up(value)
            value = level(torch.cat([gate(value, skip), value], 1))
        logits: Tensor = self.head(value)
        return logits


class Parallel(nn.Module):
    """An image and what paths of several dilations make of it, norm and activation before each convolution."""

    def __init__(self, width: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.paths = nn.ModuleList(
            nn.Sequential(
                *[
                    part
                    for _ in range(2)
                    for part in (
                        nn.BatchNorm2d(width),
                        nn.ReLU(),
                        nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation),
                    )
                ]
            )
            for dilation in dilations
        )

    def forward(self, image: Tensor) -> Tensor:
        total: Tensor = image + sum(path(image) for path in self.paths)
        return total


class ResUNetA(nn.Module):
    """ResUNet-a without its pyramid pooling. Diakogiannis et al. (2020), figures 1 and 2, of three levels."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128)) -> None:
        super().__init__()
        dilations = ((1, 3, 15), (1, 3), (1,))
        self.first = nn.Conv2d(3, widths[0], 1)
        self.encoder = nn.ModuleList(map(Parallel, widths, dilations))
        self.down = nn.ModuleList(nn.Conv2d(small, wide, 1, 2) for small, wide in pairwise(widths))
        self.join = nn.ModuleList(block(wide + small, small, window=1) for small, wide in pairwise(widths))
        self.decoder = nn.ModuleList(map(Parallel, widths[:-1], dilations[:-1]))
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Logits [batch, 2, height, width] of an image [batch, 3, height, width] of a size that 4 divides."""
        skips = [self.encoder[0](self.first(image))]
        for down, level in zip(self.down, self.encoder[1:], strict=True):
            skips.append(level(down(skips[-1])))
        value = skips.pop()
        for join, level, skip in reversed([*zip(self.join, self.decoder, skips, strict=True)]):
            value = level(join(torch.cat([functional.interpolate(value, scale_factor=2), skip], 1)))
        logits: Tensor = self.head(value)
        return logits


class WarpedUNet(nn.Module):
    """A decoder that moves deep maps by a flow that it finds, in fp32. As Li et al. (2020) align in SFNet, figure 3."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128)) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(twice(inner, outer) for inner, outer in pairwise((3, *widths)))
        self.narrow = nn.ModuleList(nn.Conv2d(wide, small, 1) for small, wide in pairwise(widths))
        self.flow = nn.ModuleList(nn.Conv2d(2 * width, 2, 3, padding=1) for width in widths[:-1])
        self.decoder = nn.ModuleList(block(width, width) for width in widths[:-1])
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Logits [batch, 2, height, width] of an image [batch, 3, height, width]."""
        skips = [self.encoder[0](image)]
        for level in self.encoder[1:]:
            skips.append(level(functional.max_pool2d(skips[-1], 2)))
        value = skips.pop()
        for narrow, flow, level, skip in reversed([*zip(self.narrow, self.flow, self.decoder, skips, strict=True)]):
            value = narrow(value)
            large = functional.interpolate(value, size=skip.shape[2:], mode="bilinear", align_corners=True)
            places = moved(flow(torch.cat([large, skip], 1)).float())
            value = level(skip + functional.grid_sample(value, places, align_corners=True))
        logits: Tensor = self.head(value)
        return logits


def moved(flow: Tensor) -> Tensor:
    """Where each pixel is looked up, [batch, height, width, 2] in −1 to 1, by a flow [batch, 2, height, width]."""
    height, width = flow.shape[2:]
    lines = [torch.linspace(-1, 1, length, device=flow.device) for length in (height, width)]
    down, across = torch.meshgrid(*lines, indexing="ij")
    size = torch.tensor([width, height], device=flow.device)
    return torch.stack([across, down], -1) + flow.permute(0, 2, 3, 1) / size
