"""The classic U-Net of Ronneberger et al. (https://arxiv.org/abs/1505.04597), with batch norm and same-size output."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Upsampling = Literal["transposed", "bilinear", "aligned"]


class DoubleConv(nn.Sequential):
    """Two 3×3 convolutions that keep the size, each followed by batch norm and ReLU, `between` channels between."""

    def __init__(self, in_channels: int, out_channels: int, between: int | None = None) -> None:
        between = between or out_channels
        super().__init__(
            nn.Conv2d(in_channels, between, 3, padding=1, bias=False),
            nn.BatchNorm2d(between),
            nn.ReLU(),
            nn.Conv2d(between, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
        )


def upsample(in_channels: int, out_channels: int, upsampling: Upsampling) -> nn.Module:
    """Return a layer that doubles height and width; "aligned" keeps `in_channels`, the others give `out_channels`."""
    if upsampling == "transposed":
        return nn.ConvTranspose2d(in_channels, out_channels, 2, stride=2)
    if upsampling == "bilinear":
        return nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False), nn.Conv2d(in_channels, out_channels, 1)
        )
    if upsampling == "aligned":
        return nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
    raise ValueError(f"upsampling must be 'transposed', 'bilinear' or 'aligned', got {upsampling!r}")


MOST_CHANNELS = 2**14  # two 3×3 convolutions of this many take 19 GiB in fp32


class UNet(nn.Module):
    """Encoder, bottleneck and decoder, joined by concatenation.

    Args:
        in_channels: channels of the image.
        classes: channels of the logits.
        base: channels of the first level; each level below has twice as many.
        depth: number of halvings; the classic network has 4: 64-128-256-512-1024 channels.
        upsampling: a 2×2 transposed convolution, bilinear upsampling with a 1×1 convolution, or "aligned", the most
            copied form: bilinear with align_corners=True and no convolution. The lowest level and each level of the
            decoder but the first then end with half as many channels.
        pad: take any height and width, by padding to a multiple of 2^depth and cropping the logits.
    """

    def __init__(
        self, in_channels: int = 3, classes: int = 2, base: int = 64, depth: int = 4,
        upsampling: Upsampling = "transposed", pad: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if min(in_channels, classes, base) < 1 or depth < 0:
            sizes = f"in_channels={in_channels} classes={classes} base={base} depth={depth}"
            raise ValueError(f"{sizes}: each is at least 1, and the depth at least 0")
        if (widest := base * 2**depth) > MOST_CHANNELS:
            raise ValueError(f"base={base} depth={depth}: a lowest level of {widest} channels; {MOST_CHANNELS} at most")
        widths = [base * 2**level for level in range(depth + 1)]
        self.encoder = nn.ModuleList(
            DoubleConv(before, after) for before, after in zip([in_channels, *widths], widths[:-1], strict=False)
        )
        self.pool = nn.MaxPool2d(2)
        ends = [base, *widths[:-1]] if upsampling == "aligned" else widths  # channels that each level passes upwards
        self.bottleneck = DoubleConv(widths[-2] if depth else in_channels, ends[-1])
        self.upsample = nn.ModuleList(upsample(2 * width, width, upsampling) for width in reversed(widths[:-1]))
        self.decoder = nn.ModuleList(
            DoubleConv(2 * width, end, width) for width, end in reversed([*zip(widths[:-1], ends[:-1], strict=True)])
        )
        self.head = nn.Conv2d(base, classes, 1)
        self.multiple = 2**depth
        self.pad = pad

    def forward(self, image: Tensor) -> Tensor:
        """Return logits [batch, classes, height, width] of `image` [batch, in_channels, height, width]."""
        height, width = image.shape[-2:]
        below, right = -height % self.multiple, -width % self.multiple
        if below or right:
            if not self.pad:
                raise ValueError(f"{height}×{width} is no multiple of {self.multiple}; set pad=true to take any size")
            image = functional.pad(image, (0, right, 0, below), mode="replicate")
        logits = self.decode(image)
        return logits[..., :height, :width] if below or right else logits

    def decode(self, image: Tensor) -> Tensor:
        """Return logits [batch, classes, h, w] of an image [batch, in_channels, h, w], h and w multiples of 2^depth."""
        skips = []
        for level in self.encoder:
            image = level(image)
            skips.append(image)
            image = self.pool(image)
        image = self.bottleneck(image)
        for grow, level in zip(self.upsample, self.decoder, strict=True):
            image = level(torch.cat([skips.pop(), grow(image)], dim=1))
        logits: Tensor = self.head(image)
        return logits
