"""Further small nets: dilated and grouped windows, volumes, joined values, inverted residuals, heads, and others."""

import torch
from torch import Tensor, nn
from torch.nn import functional


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
        return self.head(functional.relu(value))


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
        return self.last(torch.cat([functional.relu(wide(value)) for wide in self.wide], dim=1))


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
        return self.last(functional.relu(self.odd(functional.relu(self.short(pooled + self.down(value))))))


class Pix2Pix(nn.Module):
    """Windows of 4×4 that halve a map and double it, with batch and instance norms, as in pix2pix."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 4, 2, 1)
        self.second = nn.Sequential(nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32))
        self.third = nn.Sequential(nn.LeakyReLU(0.2), nn.Conv2d(32, 48, 4, 2, 1), nn.InstanceNorm2d(48))
        self.grow = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(48, 32, 4, 2, 1, bias=False), nn.BatchNorm2d(32))
        head = nn.Conv2d(16, 3, 7, padding=3, padding_mode="reflect")
        self.last = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(64, 16, 4, 2, 1), nn.ReLU(), head, nn.Tanh())

    def forward(self, image: Tensor) -> Tensor:
        second = self.second(self.first(image))
        return self.last(torch.cat([self.grow(self.third(second)), second], 1))


class Unpadded(nn.Module):
    """Windows without zeros around the map: of reflected edges before a norm, added, pooled; a skip that is cropped."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.normed = nn.Conv2d(3, 64, 5, padding=2, padding_mode="replicate"), nn.InstanceNorm2d(64)
        self.mirrored = nn.Conv2d(64, 64, 3, padding=1, padding_mode="reflect")
        self.added = nn.Conv2d(64, 64, 3, padding=1, padding_mode="replicate")
        self.pooled, self.low = nn.Conv2d(64, 32, 3), nn.Conv2d(32, 32, 3, padding="valid")
        self.last = nn.Sequential(nn.Conv2d(64, 32, 3), nn.ReLU(), nn.Conv2d(32, 3, 1))

    def forward(self, image: Tensor) -> Tensor:
        first = functional.relu(self.first(image))
        added = functional.relu(self.added(functional.relu(self.normed(self.mirrored(first)))) + first)
        skip = functional.relu(self.pooled(added))
        low = functional.interpolate(functional.relu(self.low(functional.max_pool2d(skip, 2))), scale_factor=2)
        return self.last(torch.cat([low, skip[:, :, 2:-2, 2:-2]], 1))


class OfUnshuffled(nn.Module):
    """A first convolution of blocks of pixels, whose logits a shuffle lays out, as a student on blocks has them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(12, 32, 3, padding=1), nn.Conv2d(32, 16, 1)

    def forward(self, image: Tensor) -> Tensor:
        blocks = functional.relu(self.first(functional.pixel_unshuffle(image, 2)))
        return functional.pixel_shuffle(self.last(blocks), 2)


FURTHER = {
    "blocks of pixels": (OfUnshuffled, (2, 3, 20, 36)),
    "strided shortcut": (Shortcut, (2, 3, 16, 12)),
    "blocks of few channels": (FewInBlocks, (2, 3, 18, 21)),
    "dilated": (Dilated, (2, 3, 17, 22)),
    "grouped": (Grouped, (2, 3, 14, 22)),
    "unpadded": (Unpadded, (2, 3, 22, 30)),
    "pix2pix": (Pix2Pix, (2, 3, 24, 40)),
}


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
        return self.last(large) + large + self.beside(value)


def normed_head() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.InstanceNorm2d(32, affine=True), nn.LeakyReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.InstanceNorm2d(64, affine=True), nn.LeakyReLU(),
        nn.ConvTranspose2d(64, 32, 3, stride=2, padding=1, output_padding=1), nn.InstanceNorm2d(32), nn.LeakyReLU(),
        nn.Conv2d(32, 3, 1),
    )  # fmt: skip


class Late(nn.Sequential):
    """A convolution of stride 2, padded by one more row below and column right, as TensorFlow's nets are; its norm."""

    def __init__(self, inner: int, outer: int, side: int, groups: int = 1) -> None:
        few, many = (side - 3) // 2, (side - 1) // 2
        padding = nn.ZeroPad2d((few, many, few, many))
        super().__init__(
            padding, nn.Conv2d(inner, outer, side, 2, groups=groups, bias=False), nn.BatchNorm2d(outer), nn.SiLU()
        )


class Squeezed(nn.Module):
    """A depthwise layer, the factors of its channels, and a 1×1 convolution of both: the end of a block."""

    def __init__(self, channels: int, outer: int, depthwise: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.depthwise, self.gate = depthwise, gate
        self.reduce, self.expand = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)
        self.project = nn.Sequential(nn.Conv2d(channels, outer, 1, bias=False), nn.BatchNorm2d(outer))

    def forward(self, image: Tensor) -> Tensor:
        value = self.depthwise(image)
        mean = (
            functional.adaptive_avg_pool2d(value, 1) if isinstance(self.gate, nn.Sigmoid) else value.mean((2, 3), True)
        )
        factors = self.gate(self.expand(functional.silu(self.reduce(mean))))
        return self.project(factors * value)


class InvertedResiduals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = Late(3, 16, 3)
        grouped = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.SiLU())
        self.high = Squeezed(16, 24, grouped, nn.Sigmoid())
        self.wide = nn.Sequential(nn.Conv2d(24, 40, 1, bias=False), nn.BatchNorm2d(40), nn.SiLU())
        self.low = Squeezed(40, 24, Late(40, 40, 5, groups=40), nn.Hardsigmoid())
        self.again = Squeezed(24, 24, nn.Sequential(nn.Conv2d(24, 24, 5, 1, 2, groups=24), nn.SiLU()), nn.Sigmoid())
        self.up = nn.Sequential(nn.Conv2d(48, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        high = self.high(self.stem(image))
        low = self.low(self.wide(high))
        low = self.again(low) + low
        joined = torch.cat([functional.interpolate(low, scale_factor=2, mode="nearest"), high], dim=1)
        return self.head(self.up(joined))


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
        return self.head(self.last(torch.cat([grown, high], dim=1)))


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
        return self.wide(self.last(torch.cat([grown, value], dim=-4)))


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
        return self.head(self.last(torch.cat([grown, high], dim=1)))


def strided_in_slices() -> nn.Module:
    """As nnU-Net's second level where slices are somewhat further apart than pixels, after a window of 5×5×5."""
    down = nn.Conv3d(16, 32, 3, (1, 2, 2), 1)
    first, last = nn.Conv3d(8, 16, 5, padding=2), nn.Conv3d(32, 3, 5, padding=2)
    return nn.Sequential(first, nn.ReLU(), down, nn.InstanceNorm3d(32), nn.ReLU(), last)


VOLUMES = {
    "volumes, a stride within slices": (strided_in_slices, (2, 8, 3, 32, 6)),
    "volumes of slices far apart": (FlatVolumes, (2, 1, 3, 16, 12)),
    "volumes": (PlainVolumes, (2, 1, 4, 16, 12)),
    "volumes, residuals, an odd depth": (ResidualVolumes, (1, 8, 3, 16, 24)),
}


def conv(inner: int, outer: int = 16) -> nn.Conv2d:
    return nn.Conv2d(inner, outer, 3, padding=1)


class NewestFirst(nn.Module):
    """Each layer reads all values before it, the newest first, as each level of UNet++ does."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([conv(3), *(conv(16 * count) for count in range(1, 5))])

    def forward(self, image: Tensor) -> Tensor:
        first, *rest, last = self.layers
        values = [first(image).relu()]
        for layer in rest:
            values.insert(0, layer(torch.cat(values, 1)).relu())
        return last(torch.cat(values, 1))


class NewestLast(nn.Module):
    """Each layer norms all values before it, the newest last, as DenseNet's blocks do; a pool makes the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = conv(3)
        self.layers = nn.ModuleList([conv(16 * count) for count in range(1, 4)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(16 * count) for count in range(1, 4)])

    def forward(self, image: Tensor) -> Tensor:
        values = [functional.max_pool2d(self.first(image).relu(), 2)]
        for norm, layer in zip(self.norms, self.layers, strict=True):
            values.append(layer(norm(torch.cat(values, 1)).relu()))
        return values[-1]


class Shared(nn.Module):
    """A skip that two concatenations want, which have no order in common, each beside an up-sampling of Inductor's."""

    def __init__(self) -> None:
        super().__init__()
        self.skip, self.low, self.lower = conv(3), conv(16), conv(16)
        self.once, self.again = conv(32), conv(48)

    def forward(self, image: Tensor) -> Tensor:
        skip = self.skip(image).relu()
        once = self.once(torch.cat([self.grown(self.low, skip), skip], 1)).relu()
        return self.again(torch.cat([self.grown(self.lower, once), once, skip], 1))

    @staticmethod
    def grown(low: nn.Module, value: Tensor) -> Tensor:
        """A value once it was half as large; the activation keeps the up-sampling out of the layer after it."""
        half = low(functional.max_pool2d(value, 2))
        return functional.relu6(functional.interpolate(half, scale_factor=2.0, mode="nearest"))
