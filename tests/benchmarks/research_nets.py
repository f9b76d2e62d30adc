"""U-Nets of papers that no house ships, small, written from the papers' figures: for the benchmarks, and for tests."""

from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


def block(inner: int, outer: int, dilation: int = 1, window: int = 3) -> nn.Sequential:
    """A convolution without bias, batch norm and ReLU, on maps that keep their size."""
    conv = nn.Conv2d(inner, outer, window, padding=dilation * (window // 2), dilation=dilation, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outer), nn.ReLU())


def twice(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(block(inner, outer), block(outer, outer))


def halved(image: Tensor) -> Tensor:
    return functional.max_pool2d(image, 2, ceil_mode=True)


def as_large_as(image: Tensor, other: Tensor) -> Tensor:
    return functional.interpolate(image, size=other.shape[2:], mode="bilinear", align_corners=False)


class NestedLevel(nn.Module):
    """A U-Net within one level of U²-Net: `depth` maps, a dilated convolution below them, and a residual over all."""

    def __init__(self, inner: int, middle: int, outer: int, depth: int) -> None:
        super().__init__()
        self.first = block(inner, outer)
        self.down = nn.ModuleList(block(middle if level else outer, middle) for level in range(depth))
        self.below = block(middle, middle, dilation=2)
        self.up = nn.ModuleList(block(2 * middle, middle if level else outer) for level in range(depth))

    def forward(self, image: Tensor) -> Tensor:
        given: Tensor = self.first(image)
        skips = [self.down[0](given)]
        for layer in self.down[1:]:
            skips.append(layer(halved(skips[-1])))
        value = self.below(skips[-1])
        for layer, skip in zip(reversed(self.up), reversed(skips), strict=True):
            raised = value if value.shape[2:] == skip.shape[2:] else as_large_as(value, skip)
            value = layer(torch.cat([raised, skip], 1))
        return given + value


class U2Net(nn.Module):
    """U²-Net: a U-Net in each level, and logits of each level joined. Qin et al. (2020), figure 5, of four levels."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        depths = (5, 4, 3, 2)
        self.encoder = nn.ModuleList(
            NestedLevel(width if level else 3, 16, width, depth) for level, depth in enumerate(depths)
        )
        self.decoder = nn.ModuleList(NestedLevel(2 * width, 16, width, depth) for depth in depths[:-1])
        self.sides = nn.ModuleList(nn.Conv2d(width, 1, 3, padding=1) for _ in depths)
        self.head = nn.Conv2d(len(depths), 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        skips = [self.encoder[0](image)]
        for level in self.encoder[1:]:
            skips.append(level(halved(skips[-1])))
        value = skips.pop()
        seen = [self.sides[-1](value)]
        for level, side, skip in zip(reversed(self.decoder), [*self.sides][-2::-1], reversed(skips), strict=True):
            value = level(torch.cat([as_large_as(value, skip), skip], 1))
            seen.append(side(value))
        return self.head(torch.cat([as_large_as(part, image) for part in seen], 1))


class UNet3Plus(nn.Module):
    """UNet 3+: each decoder level reads every level, made smaller or larger. Huang et al. (2020), figure 1."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256), shared: int = 32) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(twice(inner, outer) for inner, outer in pairwise((3, *widths)))
        last, joined = len(widths) - 1, shared * len(widths)
        self.taken = nn.ModuleList(
            nn.ModuleList(
                block(width if other <= level or other == last else joined, shared)
                for other, width in enumerate(widths)
            )
            for level in range(last)
        )
        self.decoder = nn.ModuleList(block(joined, joined) for _ in range(last))
        self.head = nn.Conv2d(joined, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        encoded = [self.encoder[0](image)]
        for encode in self.encoder[1:]:
            encoded.append(encode(functional.max_pool2d(encoded[-1], 2)))
        decoded, taken = [*encoded], [[*of_level.children()] for of_level in self.taken]
        for level in reversed(range(len(self.decoder))):
            values = [*encoded[: level + 1], *decoded[level + 1 :]]
            parts = [
                take(resized(value, level - other))
                for other, (take, value) in enumerate(zip(taken[level], values, strict=True))
            ]
            decoded[level] = self.decoder[level](torch.cat(parts, 1))
        return self.head(decoded[0])


def resized(image: Tensor, halvings: int) -> Tensor:
    """An image that is halved so often, by the largest value, or doubled, bilinearly, where that is negative."""
    if halvings > 0:
        return functional.max_pool2d(image, 2**halvings)
    if halvings < 0:
        return functional.interpolate(image, scale_factor=2**-halvings, mode="bilinear", align_corners=False)
    return image


class ChannelNorm(nn.Module):
    """Layer norm over the channels of each pixel, as NAFNet writes it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, image: Tensor) -> Tensor:
        mean = image.mean(1, keepdim=True)
        variance = (image - mean).pow(2).mean(1, keepdim=True)
        even = (image - mean) / (variance + 1e-6).sqrt()
        return even * self.weight[:, None, None] + self.bias[:, None, None]


class GatedBlock(nn.Module):
    """NAFNet's block: halves multiplied in place of activations, and channels weighted by their means."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = ChannelNorm(width), ChannelNorm(width)
        self.widen = nn.Conv2d(width, 2 * width, 1)
        self.spread = nn.Conv2d(2 * width, 2 * width, 3, padding=1, groups=2 * width)
        self.narrow = nn.Conv2d(width, width, 1)
        self.attend = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1))
        self.last_widen, self.last_narrow = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(width, width, 1)
        self.first_share = nn.Parameter(torch.full((1, width, 1, 1), 0.5))
        self.second_share = nn.Parameter(torch.full((1, width, 1, 1), 0.5))

    def forward(self, image: Tensor) -> Tensor:
        one, other = self.spread(self.widen(self.first_norm(image))).chunk(2, 1)
        gated = one * other
        image = image + self.narrow(gated * self.attend(gated)) * self.first_share
        one, other = self.last_widen(self.second_norm(image)).chunk(2, 1)
        return image + self.last_narrow(one * other) * self.second_share


class NAFNet(nn.Module):
    """NAFNet, which restores images: no activation at all. Chen et al. (2022), figures 2 and 3."""

    def __init__(self, width: int = 32, encoded: Iterable[int] = (1, 1, 2), decoded: Iterable[int] = (1, 1, 1)) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.encoder, self.down, self.up, self.decoder = (nn.ModuleList() for _ in range(4))
        for blocks in encoded:
            self.encoder.append(nn.Sequential(*[GatedBlock(width) for _ in range(blocks)]))
            self.down.append(nn.Conv2d(width, 2 * width, 2, 2))
            width *= 2
        self.middle = GatedBlock(width)
        for blocks in decoded:
            self.up.append(nn.Sequential(nn.Conv2d(width, 2 * width, 1, bias=False), nn.PixelShuffle(2)))
            width //= 2
            self.decoder.append(nn.Sequential(*[GatedBlock(width) for _ in range(blocks)]))
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        value, skips = self.first(image), []
        for level, down in zip(self.encoder, self.down, strict=True):
            skips.append(level(value))
            value = down(skips[-1])
        value = self.middle(value)
        for up, level, skip in zip(self.up, self.decoder, reversed(skips), strict=True):
            value = level(up(value) + skip)
        return self.last(value) + image


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
        value, skips = image, list[Tensor]()
        for widen, level in zip(self.widen, self.encoder, strict=True):
            value = widen(halved(value) if skips else value)
            value = value + level(value)
            skips.append(value)
        decoder = zip(self.up, self.join, self.decoder, skips[:-1], strict=True)
        for up, join, level, skip in reversed([*decoder]):
            value = join(torch.cat([skip, up(value)], 1))
            value = value + level(value)
        return self.head(value)


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
        return image + sum(path(image) for path in self.paths)


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
        skips = [self.encoder[0](self.first(image))]
        for down, level in zip(self.down, self.encoder[1:], strict=True):
            skips.append(level(down(skips[-1])))
        value = skips.pop()
        for join, level, skip in reversed([*zip(self.join, self.decoder, skips, strict=True)]):
            value = level(join(torch.cat([functional.interpolate(value, scale_factor=2), skip], 1)))
        return self.head(value)


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
        skips = [self.encoder[0](image)]
        for level in self.encoder[1:]:
            skips.append(level(functional.max_pool2d(skips[-1], 2)))
        value = skips.pop()
        for narrow, flow, level, skip in reversed([*zip(self.narrow, self.flow, self.decoder, skips, strict=True)]):
            value = narrow(value)
            large = functional.interpolate(value, size=skip.shape[2:], mode="bilinear", align_corners=True)
            places = moved(flow(torch.cat([large, skip], 1)).float())
            value = level(skip + functional.grid_sample(value, places, align_corners=True))
        return self.head(value)


def moved(flow: Tensor) -> Tensor:
    """Where each pixel is looked up, [batch, height, width, 2] in −1 to 1, by a flow [batch, 2, height, width]."""
    height, width = flow.shape[2:]
    lines = [torch.linspace(-1, 1, length, device=flow.device) for length in (height, width)]
    down, across = torch.meshgrid(*lines, indexing="ij")
    size = torch.tensor([width, height], device=flow.device)
    return torch.stack([across, down], -1) + flow.permute(0, 2, 3, 1) / size


class Pix2Pix(nn.Module):
    """The generator of pix2pix: windows of 4×4 halve a map eight times and double it again, with a skip at each size.

    Isola et al., Image-to-Image Translation with Conditional Adversarial Networks (2017), appendix 6.1.
    """

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512, 512, 512, 512, 512)) -> None:
        super().__init__()
        steps = [*pairwise((3, *widths))]
        self.down = nn.ModuleList(nn.Conv2d(small, wide, 4, 2, 1, bias=False) for small, wide in steps)
        self.down_norms = nn.ModuleList(nn.BatchNorm2d(wide) for wide in widths[1:-1])
        read = [2 * wide for wide in widths[:-1]] + [widths[-1]]
        widened = zip(read, steps, strict=True)
        self.up = nn.ModuleList(nn.ConvTranspose2d(wide, small, 4, 2, 1) for wide, (small, _) in widened)
        self.up_norms = nn.ModuleList(nn.BatchNorm2d(small) for small in widths[:-1])

    def forward(self, image: Tensor) -> Tensor:
        first, *others = self.down
        skips = [first(image)]
        for layer, norm in zip(others, [*self.down_norms, nn.Identity()], strict=True):
            skips.append(norm(layer(functional.leaky_relu(skips[-1], 0.2))))
        x = skips.pop()
        for layer, norm in zip(self.up[:0:-1], reversed(self.up_norms), strict=True):
            x = torch.cat([norm(layer(functional.relu(x))), skips.pop()], 1)
        drawn: Tensor = self.up[0](functional.relu(x))
        return drawn.tanh()
