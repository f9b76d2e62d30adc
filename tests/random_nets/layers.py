"""Single layers of random nets: convolutions, norms and activations, of images (`dims` 2) and of volumes (3)."""

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from tests.random_nets.draw import Draw


def made(name: str, dims: int, *args: object, **named: object) -> nn.Module:
    """A layer of torch of a number of dimensions: "Conv" of 2 is nn.Conv2d."""
    layer: nn.Module = getattr(nn, f"{name}{dims}d")(*args, **named)
    return layer


class Conv(nn.Module):
    """A convolution that keeps the size, or divides it by its stride and rounds up, however its border is padded."""

    def __init__(self, draw: Draw, dims: int, inner: int, outer: int, stride: int = 1, side: int | None = None) -> None:
        super().__init__()
        drawn = SIDES[draw.pick("window", 3, 3, 3, 3, 1, 5, 7, "1x3", "3x1", 2)][:dims]
        self.window = [side] * dims if side else drawn
        self.dilation = 1 if stride > 1 else draw.pick("dilation", 1, 1, 1, 1, 2, 3)
        common = math.gcd(inner, outer)
        self.groups = draw.pick("groups", 1, 1, 1, 1, 1, common, 2 if common % 2 == 0 else 1)
        self.mode = draw.pick("padding mode", "zeros", "zeros", "zeros", "zeros", "reflect", "replicate", "circular")
        self.how = draw.pick("padded by", "itself", "itself", "a pad", "a word")
        totals = [self.dilation * (k - 1) for k in self.window]
        self.sides = [(total // 2, total - total // 2) for total in totals]
        even = all(a == b for a, b in self.sides)
        itself = self.mode == "zeros" and even and self.how == "itself"
        word = self.mode == "zeros" and stride == 1 and self.how == "a word"
        self.pads = not (itself or word)
        padding: str | list[int] = "same" if word else [a for a, _ in self.sides] if itself else [0] * dims
        bias = draw.pick("bias", True, True, False)
        self.conv = made(
            "Conv", dims, inner, outer, self.window, stride, padding, self.dilation, self.groups, bias=bias
        )
        weighed = draw.pick("weight", "plain", *["plain"] * 8, "weight norm", "standardised", "scaled")
        if weighed == "weight norm":
            parametrizations.weight_norm(self.conv)
        self.weighed = weighed

    def forward(self, x: Tensor) -> Tensor:
        if self.pads:
            fits = all(max(pair) < length for pair, length in zip(self.sides, x.shape[2:], strict=True))
            mode = {"zeros": "constant"}.get(self.mode, self.mode) if fits else "replicate"
            x = functional.pad(x, list(chain(*reversed(self.sides))), mode)
        if self.weighed not in ("standardised", "scaled"):
            convolved: Tensor = self.conv(x)
            return convolved
        conv: Any = self.conv
        weight = conv.weight
        if self.weighed == "standardised":
            axes = list(range(1, weight.dim()))
            weight = (weight - weight.mean(axes, keepdim=True)) / (weight.std(axes, keepdim=True) + 1e-3) * 0.1
        bias = None if conv.bias is None else conv.bias * 2
        call = (functional.conv2d, functional.conv3d)[x.dim() - 4]
        answer: Tensor = call(x, weight, bias, conv.stride, conv.padding, self.dilation, self.groups)
        return answer


SIDES: dict[object, list[int]] = {
    3: [3] * 3, 1: [1] * 3, 5: [5] * 3, 7: [7] * 3, "1x3": [1, 3, 3], "3x1": [3, 1, 1], 2: [2] * 3
}  # fmt: skip


class LayerNorm(nn.Module):
    """Layer norm over the channels of a map, as ConvNeXt writes it: with a permutation, or by hand."""

    def __init__(self, channels: int, permutes: bool) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(channels) + 0.5), nn.Parameter(torch.randn(channels) * 0.1)
        self.permutes = permutes

    def forward(self, x: Tensor) -> Tensor:
        if self.permutes:
            last = functional.layer_norm(x.movedim(1, -1), self.weight.shape, self.weight, self.bias, 1e-6)
            return last.movedim(-1, 1)
        mean = x.mean(1, keepdim=True)
        variance = (x - mean).pow(2).mean(1, keepdim=True)
        shape = (-1, *[1] * (x.dim() - 2))
        return self.weight.view(shape) * ((x - mean) / torch.sqrt(variance + 1e-5)) + self.bias.view(shape)


class RootMeanSquare(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.view(-1, *[1] * (x.dim() - 2))
        answer: Tensor = functional.normalize(x, dim=1) * weight * float(len(self.weight)) ** 0.5
        return answer


class ComputedNorm(nn.Module):
    """A norm whose weight and bias are computed at each call from parameters, as nets write `1 + gamma`."""

    def __init__(self, kind: str, channels: int) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.randn(channels) * 0.3), nn.Parameter(torch.randn(channels) * 0.3)
        self.mean, self.variance = nn.Buffer(torch.randn(channels) * 0.2), nn.Buffer(torch.rand(channels) + 0.5)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = 1 + self.gamma, self.beta * 2
        if self.kind == "batch":
            return functional.batch_norm(x, self.mean, self.variance, weight, bias)
        if self.kind == "group":
            return functional.group_norm(x, groups_of(x.shape[1]), weight, bias)
        return functional.instance_norm(x, weight=weight, bias=bias)


def groups_of(channels: int) -> int:
    return next(groups for groups in (4, 3, 5, 2, 1) if channels % groups == 0)


NORMS: dict[str, Callable[[int, int], nn.Module]] = {
    "batch": lambda dims, c: made("BatchNorm", dims, c),
    "none": lambda *_: nn.Identity(),
    "batch, no affine": lambda dims, c: made("BatchNorm", dims, c, affine=False),
    "instance": lambda dims, c: made("InstanceNorm", dims, c),
    "instance, affine": lambda dims, c: made("InstanceNorm", dims, c, affine=True),
    "instance, tracked": lambda dims, c: made("InstanceNorm", dims, c, affine=True, track_running_stats=True),
    "group": lambda _, c: nn.GroupNorm(groups_of(c), c),
    "group, no affine": lambda _, c: nn.GroupNorm(groups_of(c), c, affine=False),
    "group of one": lambda _, c: nn.GroupNorm(1, c),
    "a group each": lambda _, c: nn.GroupNorm(c, c),
    "layer, permuted": lambda _, c: LayerNorm(c, permutes=True),
    "layer, by hand": lambda _, c: LayerNorm(c, permutes=False),
    "root mean square": lambda _, c: RootMeanSquare(c),
    "computed batch": lambda _, c: ComputedNorm("batch", c),
    "computed group": lambda _, c: ComputedNorm("group", c),
    "computed instance": lambda _, c: ComputedNorm("instance", c),
}


def norm(draw: Draw, dims: int, channels: int) -> nn.Module:
    """Any norm, batch norm the likeliest, with statistics and weights that are not 0 and 1."""
    layer = NORMS[draw.pick("norm", *["batch"] * 6, *NORMS)](dims, channels)
    with torch.no_grad():
        for name, values in chain(layer.named_parameters(), layer.named_buffers()):
            if values.is_floating_point() and not isinstance(layer, ComputedNorm):
                values.uniform_(0.5, 1.5) if name in ("weight", "running_var") else values.normal_(0, 0.2)
    return layer


class Gated(nn.Module):
    """A gated linear unit: a 1×1 convolution to twice the channels, one half of which gates the other."""

    def __init__(self, dims: int, channels: int) -> None:
        super().__init__()
        self.twofold = made("Conv", dims, channels, 2 * channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.glu(self.twofold(x), dim=1)


class Written(nn.Module):
    """An activation written out in a net's forward, not as a layer of torch."""

    def __init__(self, form: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        return self.form(x)


ACTIVATIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "relu": lambda *_: nn.ReLU(),
    "relu in place": lambda *_: nn.ReLU(inplace=True),
    "none": lambda *_: nn.Identity(),
    "leaky": lambda *_: nn.LeakyReLU(),
    "leaky 0.2 in place": lambda *_: nn.LeakyReLU(0.2, inplace=True),
    "leaky 1.5": lambda *_: nn.LeakyReLU(1.5),
    "leaky -0.5": lambda *_: nn.LeakyReLU(-0.5),
    "leaky 0": lambda *_: nn.LeakyReLU(0.0),
    "elu": lambda *_: nn.ELU(),
    "elu 0.5": lambda *_: nn.ELU(0.5, inplace=True),
    "celu": lambda *_: nn.CELU(0.7),
    "selu": lambda *_: nn.SELU(),
    "silu": lambda *_: nn.SiLU(),
    "silu in place": lambda *_: nn.SiLU(inplace=True),
    "swish, written": lambda *_: Written(lambda x: x * torch.sigmoid(x)),
    "gelu": lambda *_: nn.GELU(),
    "gelu tanh": lambda *_: nn.GELU("tanh"),
    "hardswish": lambda *_: nn.Hardswish(inplace=True),
    "mish": lambda *_: nn.Mish(),
    "softplus": lambda *_: nn.Softplus(),
    "relu6": lambda *_: nn.ReLU6(inplace=True),
    "clamped": lambda *_: Written(lambda x: x.clamp(min=0.1, max=2.0)),
    "squared relu": lambda *_: Written(lambda x: functional.relu(x).square()),
    "prelu": lambda *_: nn.PReLU(),
    "prelu by channel": lambda _, c: nn.PReLU(c, init=0.3),
    "glu": Gated,
    "tanh": lambda *_: nn.Tanh(),
    "hardtanh": lambda *_: nn.Hardtanh(-2, 1),
    "threshold": lambda *_: nn.Threshold(0.1, -0.2),
}


def activation(draw: Draw, dims: int, channels: int) -> nn.Module:
    layer = ACTIVATIONS[draw.pick("activation", *["relu"] * 6, *ACTIVATIONS)](dims, channels)
    if isinstance(layer, nn.PReLU):
        nn.init.uniform_(layer.weight, -0.5, 1.2)
    return layer
