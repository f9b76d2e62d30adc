"""Nets of every family, small enough for a test."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.unet import UNet
from tests.compiler.further_nets import FURTHER, VOLUMES, Few, InvertedResiduals, normed_head

Size = tuple[int, ...]


class Residual(nn.Module):
    """A strided stem, residual blocks, nearest upsampling and concatenation, as nets with a ResNet encoder have."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.first = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
        self.down = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32))
        self.short = nn.Sequential(nn.Conv2d(16, 32, 1, 2, bias=False), nn.BatchNorm2d(32))
        self.up = nn.Sequential(nn.Conv2d(48, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.head = nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        stem = self.stem(image)
        high = functional.relu(self.first(stem) + stem)
        low = functional.relu(self.down(high) + self.short(high))
        joined = torch.cat([functional.interpolate(low, scale_factor=2, mode="nearest"), high], dim=1)
        return self.head(functional.interpolate(self.up(joined), scale_factor=2, mode="nearest"))


class Instance(nn.Module):
    """Instance norm, leaky ReLU, dropout, padding that does nothing, biases: as MONAI's nets have."""

    def __init__(self) -> None:
        super().__init__()
        self.high = self.block(3, 16)
        self.low = self.block(16, 32)
        self.grow = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.last = self.block(32, 16)
        self.head = nn.Conv2d(16, 2, 1)

    @staticmethod
    def block(inner: int, outer: int) -> nn.Sequential:
        norm = nn.InstanceNorm2d(outer, affine=True)
        return nn.Sequential(nn.Conv2d(inner, outer, 3, padding=1), norm, nn.Dropout(0.5), nn.LeakyReLU(0.1))

    def forward(self, image: Tensor) -> Tensor:
        high = self.high(image)
        grown = self.grow(self.low(functional.max_pool2d(high, 2)))
        grown = functional.pad(
            grown, [0, high.shape[3] - grown.shape[3], 0, high.shape[2] - grown.shape[2]], "replicate"
        )
        return self.head(self.last(torch.cat([high, grown], dim=1)))


class Diffusion(nn.Module):
    """Group norm and SiLU before convolutions, attention, nearest upsampling, as diffusers' nets."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.norms = nn.ModuleList([nn.GroupNorm(8, channels) for channels in (32, 32, 64, 32)])
        self.convs = nn.ModuleList([nn.Conv2d(inner, 32, 3, padding=1) for inner in (32, 32, 64)])
        self.down = nn.Conv2d(32, 32, 3, 2, 1)
        self.queries, self.kept = nn.Linear(32, 32, bias=False), nn.Linear(32, 64)
        self.moments = nn.ModuleList([nn.Linear(3, 32) for _ in range(2)])
        self.mixed = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.last = nn.Conv2d(32, 4, 3, padding=1)

    def attention(self, low: Tensor) -> Tensor:
        tokens = low.flatten(2).transpose(1, 2)
        heads = (part.unflatten(2, (4, 8)).transpose(1, 2) for part in self.kept(tokens).chunk(2, 2))
        queries = self.queries(tokens).unflatten(2, (4, 8)).transpose(1, 2)
        seen = functional.scaled_dot_product_attention(queries, *heads)
        mixed: Tensor = self.mixed(seen.transpose(1, 2).flatten(2)).transpose(1, 2).reshape(low.shape)
        return low + mixed

    def forward(self, image: Tensor) -> Tensor:
        first = self.first(image)
        high = (first + self.convs[0](functional.silu(self.norms[0](first)))) / 1.0
        low, mean = self.down(high), image.mean((2, 3))
        one, other = (layer(functional.silu(mean)) for layer in self.moments)
        moment = (one + other)[..., None, None]
        low = self.attention(low + self.convs[1](functional.silu(self.norms[1](low + moment))))
        joined = torch.cat([functional.interpolate(low, scale_factor=2.0, mode="nearest"), high], dim=1)
        up = self.convs[2](functional.silu(self.norms[2](joined)))
        return self.last(functional.silu(self.norms[3](up)))


class Nested(nn.Module):
    """Concatenations of concatenations' parts, as UNet++ has: a value is in several, and twice in one."""

    def __init__(self) -> None:
        super().__init__()
        self.high, self.low = self.block(3), self.block(16)
        self.grow = nn.ConvTranspose2d(16, 16, 2, stride=2)
        self.first, self.second, self.third = self.block(32), self.block(48), self.block(64)
        self.head = nn.Conv2d(16, 2, 1)

    @staticmethod
    def block(inner: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inner, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))

    def forward(self, image: Tensor) -> Tensor:
        high = self.high(image)
        low = self.low(functional.max_pool2d(high, 2))
        first = self.first(torch.cat([high, self.grow(low)], dim=1))
        second = self.second(torch.cat([high, first, functional.interpolate(low, scale_factor=2, mode="nearest")], 1))
        return self.head(self.third(torch.cat([high, first, second, second], dim=1)))


class Excited(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(32, 8, 1), nn.ReLU(), nn.Conv2d(8, 32, 1))
        self.head = nn.Conv2d(32, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        value = functional.relu(self.second(functional.relu(self.first(image))))
        value = value * self.squeeze(value).sigmoid()
        value = functional.interpolate(value, scale_factor=2.0, mode="bilinear", align_corners=True)
        return self.head(functional.relu(value))


class Wide(nn.Module):
    """Channels enough for kernels that add residuals, sum for norms, and end in a slope for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(inner, 64, 3, padding=1) for inner in (3, 64, 64, 64, 64)])
        self.instance, self.group = nn.InstanceNorm2d(64, affine=True), nn.GroupNorm(4, 64)
        self.slopes, self.slope = nn.PReLU(64, init=0.1), nn.PReLU(init=0.3)
        self.head = nn.Conv2d(64, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        first, second, third, fourth, fifth = self.convs
        value = self.slopes(first(image))
        value = functional.relu(second(value) + value)
        value = value + functional.leaky_relu(self.instance(third(value)))
        value = functional.silu(self.group(fourth(self.slope(value))))
        return self.head(self.slopes(fifth(value)))


def same_padding() -> nn.Module:
    """Convolutions whose padding is a word, as in nets that come from Keras; one that no kernel takes among them."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding="same"), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding="same"),
        nn.ReLU(), nn.Conv2d(16, 16, (3, 5), padding="same"), nn.Conv2d(16, 16, 3, padding="valid"),
        nn.Conv2d(16, 2, 1, padding="same"),
    )  # fmt: skip


class Padded(nn.Module):
    """What hides layers from each other: dropouts, MONAI's pads by nothing, pads of zeros, smp's empty skips."""

    def __init__(self) -> None:
        super().__init__()
        self.high = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Dropout(0.1), nn.ReLU())
        self.low = nn.Sequential(nn.ZeroPad2d((2, 2, 1, 1)), nn.Conv2d(16, 32, (3, 5), 2), nn.BatchNorm2d(32))
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.last = nn.Sequential(nn.Conv2d(32, 16, 3, padding=1), nn.Dropout(), nn.LeakyReLU(0.1), nn.Conv2d(16, 2, 1))

    def forward(self, image: Tensor) -> Tensor:
        high = self.high(image)
        nothing = torch.empty(len(image), 0, *high.shape[2:], dtype=image.dtype, device=image.device)
        low = self.low(torch.cat([high, nothing], dim=1))
        grown = nn.functional.pad(self.up(low), (0, 0, 0, 0), mode="replicate")
        return self.last(torch.cat([high, nothing, grown], dim=1))


def depthwise() -> nn.Module:
    """Depthwise and pointwise convolutions with ReLU6, as MobileNet's blocks have."""

    def block(inner: int, outer: int, stride: int) -> list[nn.Module]:
        grouped = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False)
        pointwise = nn.Conv2d(inner, outer, 1, bias=False)
        return [grouped, nn.BatchNorm2d(inner), nn.ReLU6(), pointwise, nn.BatchNorm2d(outer), nn.ReLU6()]

    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()]
    return nn.Sequential(*stem, *block(16, 32, 1), *block(32, 32, 2), nn.Conv2d(32, 2, 1))


def transposed_with_norm() -> nn.Module:
    """Batch norms after transposed convolutions, of more than one window, as restoration and GANs have."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ConvTranspose2d(32, 16, 2, stride=2, bias=False), nn.BatchNorm2d(16),
        nn.ReLU(), nn.ConvTranspose2d(16, 16, 4, 2, 1), nn.BatchNorm2d(16),
        nn.ConvTranspose2d(16, 32, 4, 2, 1, groups=2), nn.BatchNorm2d(32),
        nn.ConvTranspose2d(32, 16, 3, 2, 1, output_padding=1), nn.Conv2d(16, 3, 3, padding=1), nn.Tanh(),
    )  # fmt: skip


def patches() -> nn.Module:
    """Windows side by side, which leave pixels at the edges out, and oblong transposed ones; a view after a norm."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 4, 4, bias=False), nn.BatchNorm2d(32), nn.GELU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(32, 16, (4, 5), (4, 5), bias=False), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.InstanceNorm2d(16),
        nn.Conv2d(16, 8, 6, 6), nn.Flatten(2), nn.Linear(18, 8),
    )  # fmt: skip


class Masked(nn.Module):
    """Python's operators on masks, and a write through a view of a value that is read later."""

    def forward(self, image: Tensor) -> Tensor:
        value = torch.where((image > 0) & (image < 1), image, -image)
        value[:, :1].mul_(2)
        return value


def lively(net: nn.Module) -> nn.Module:
    """The net in eval mode, its batch norms as training leaves them: not the identity."""
    generator = torch.Generator().manual_seed(7)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d | nn.BatchNorm3d) and layer.track_running_stats:
            size = layer.weight.shape
            layer.running_mean = 0.3 * torch.randn(size, generator=generator)
            layer.running_var = 0.5 + torch.rand(size, generator=generator)
            layer.weight.data = 0.5 + torch.rand(size, generator=generator)
            layer.bias.data = 0.2 * torch.randn(size, generator=generator)
    return net.eval()


def classic(**options: Any) -> nn.Module:
    return lively(UNet(**{"base": 16, "depth": 2, **options}))


def image(*size: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(1))


def ending_in(net: nn.Module, make: Callable[[], nn.Module]) -> nn.Module:
    for parent in list(net.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, nn.ReLU):
                setattr(parent, name, make())
    return net


NETS: dict[str, tuple[Callable[[], nn.Module], Size]] = {
    "classic": (classic, (2, 3, 32, 48)), "odd size": (classic, (1, 3, 21, 27)),
    "one level, batch 3": (lambda: classic(depth=1), (3, 3, 16, 16)),
    "no level": (lambda: classic(depth=0), (1, 3, 9, 7)),
    "channels no kernel takes": (lambda: classic(base=12, depth=1), (2, 3, 32, 32)),
    "bilinear": (lambda: classic(upsampling="bilinear"), (2, 3, 32, 48)),
    "aligned": (lambda: classic(upsampling="aligned"), (2, 3, 32, 48)),
    "bilinear, odd size": (lambda: classic(upsampling="bilinear", depth=1), (1, 3, 33, 46)),
    "one channel in, many classes": (lambda: classic(in_channels=1, classes=11, depth=1), (1, 1, 32, 32)),
    "residual": (Residual, (2, 3, 32, 48)), "instance norm": (Instance, (2, 3, 32, 48)),
    "instance norm, odd size": (Instance, (1, 3, 33, 47)), "group norm, SiLU, attention": (Diffusion, (2, 3, 16, 24)),
    "nested concatenations": (Nested, (2, 3, 16, 24)), "squeeze and excitation": (Excited, (2, 3, 16, 24)),
    "padding by a word": (same_padding, (2, 3, 16, 24)), "dropouts and pads": (Padded, (2, 3, 16, 24)),
    "late windows, depthwise, squeeze and excitation": (InvertedResiduals, (2, 3, 16, 24)),
    "depthwise": (depthwise, (2, 3, 16, 24)), "transposed with norm": (transposed_with_norm, (2, 3, 5, 4)),
    "residuals, sums for norms, slopes": (Wide, (2, 3, 16, 24)), "few channels": (Few, (2, 3, 16, 24)),
    "norms up to the logits": (normed_head, (2, 3, 20, 36)), "masks and views": (Masked, (1, 3, 8, 8)),
    "patches": (patches, (3, 3, 23, 34)),
    "patches, volumes": (lambda: nn.Sequential(nn.Conv3d(3, 8, 4, 4), nn.ConvTranspose3d(8, 3, 5, 5)), (1, 3, 9, 8, 9)),
    **VOLUMES, **FURTHER,
}  # fmt: skip
