"""Single layers of random nets: convolutions, norms and activations, of images (`dims` 2) and of volumes (3)."""

import math
import random
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

Option = TypeVar("Option")


class Draw:
    """Choices from a seed, under names; the same seed gives the same net."""

    def __init__(self, seed: int, plain: frozenset[str] = frozenset()) -> None:
        self.seed, self.plain = seed, plain
        self.oddness = random.Random(seed).choice([0.2, 0.4, 0.7, 1.0])
        self.chosen: dict[str, object] = {}
        self.path = ""

    def at(self, part: str) -> "Draw":
        inner = Draw(self.seed, self.plain)
        inner.chosen, inner.path = self.chosen, f"{self.path}{part}."
        return inner

    def pick(self, name: str, *options: Option) -> Option:
        path = f"{self.path}{name}"
        drawn = random.Random(f"{self.seed} {path}")
        calm = drawn.random() > self.oddness or path in self.plain
        place = 0 if calm else drawn.randrange(len(options))
        if options[place] != options[0]:
            self.chosen[path] = options[place]
        return options[place]

    def one_in(self, times: int, name: str) -> bool:
        return self.pick(name, *[False] * (times - 1), True)


def made(name: str, dims: int, *args: object, **named: object) -> nn.Module:
    return getattr(nn, f"{name}{dims}d")(*args, **named)


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
            return self.conv(x)
        conv: Any = self.conv
        weight = conv.weight
        if self.weighed == "standardised":
            axes = list(range(1, weight.dim()))
            weight = (weight - weight.mean(axes, keepdim=True)) / (weight.std(axes, keepdim=True) + 1e-3) * 0.1
        bias = None if conv.bias is None else conv.bias * 2
        call = (functional.conv2d, functional.conv3d)[x.dim() - 4]
        return call(x, weight, bias, conv.stride, conv.padding, self.dilation, self.groups)


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
        return functional.normalize(x, dim=1) * weight * float(len(self.weight)) ** 0.5


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


def gated(dims: int, channels: int) -> nn.Module:
    """A gated linear unit: a 1×1 convolution to twice the channels, one half of which gates the other."""
    return nn.Sequential(made("Conv", dims, channels, 2 * channels, 1), nn.GLU(dim=1))


class Written(nn.Module):
    def __init__(self, form: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> Tensor:
        return self.form(x)


ACTIVATIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "relu": lambda *_: nn.ReLU(), "relu in place": lambda *_: nn.ReLU(inplace=True), "none": lambda *_: nn.Identity(),
    "leaky": lambda *_: nn.LeakyReLU(), "leaky 0.2 in place": lambda *_: nn.LeakyReLU(0.2, inplace=True),
    "leaky 1.5": lambda *_: nn.LeakyReLU(1.5), "leaky -0.5": lambda *_: nn.LeakyReLU(-0.5),
    "leaky 0": lambda *_: nn.LeakyReLU(0.0), "elu": lambda *_: nn.ELU(),
    "elu 0.5": lambda *_: nn.ELU(0.5, inplace=True), "celu": lambda *_: nn.CELU(0.7), "selu": lambda *_: nn.SELU(),
    "silu": lambda *_: nn.SiLU(), "silu in place": lambda *_: nn.SiLU(inplace=True),
    "swish, written": lambda *_: Written(lambda x: x * torch.sigmoid(x)), "gelu": lambda *_: nn.GELU(),
    "gelu tanh": lambda *_: nn.GELU("tanh"), "hardswish": lambda *_: nn.Hardswish(inplace=True),
    "mish": lambda *_: nn.Mish(), "softplus": lambda *_: nn.Softplus(), "relu6": lambda *_: nn.ReLU6(inplace=True),
    "clamped": lambda *_: Written(lambda x: x.clamp(min=0.1, max=2.0)),
    "squared relu": lambda *_: Written(lambda x: functional.relu(x).square()), "prelu": lambda *_: nn.PReLU(),
    "prelu by channel": lambda _, c: nn.PReLU(c, init=0.3), "glu": gated, "tanh": lambda *_: nn.Tanh(),
    "hardtanh": lambda *_: nn.Hardtanh(-2, 1), "threshold": lambda *_: nn.Threshold(0.1, -0.2),
}  # fmt: skip


def activation(draw: Draw, dims: int, channels: int) -> nn.Module:
    layer = ACTIVATIONS[draw.pick("activation", *["relu"] * 6, *ACTIVATIONS)](dims, channels)
    if isinstance(layer, nn.PReLU):
        nn.init.uniform_(layer.weight, -0.5, 1.2)
    return layer


class Down(nn.Module):
    def __init__(self, draw: Draw, dims: int, channels: int) -> None:
        super().__init__()
        forms = [form for form in FORMS if dims == 2 or form != "unshuffled"]
        self.how = draw.pick("down", *["max"] * 3, *forms, "strided", "strided")
        self.conv: nn.Module = nn.Identity()
        if self.how == "strided":
            self.conv = Conv(draw, dims, channels, channels, stride=2)
        elif self.how == "strided 2":
            self.conv = made("Conv", dims, channels, channels, 2, 2)
        elif self.how == "strided 4":
            self.conv = made("Conv", dims, channels, channels, 4, 2, 1, bias=False)
        elif self.how == "depthwise":
            self.conv = made("Conv", dims, channels, channels, 3, 2, 1, groups=channels)
        elif self.how == "late":  # as TensorFlow pads
            self.conv = made("Conv", dims, channels, channels, 3, 2)
        elif self.how == "unshuffled":
            self.conv = nn.Conv2d(4 * channels, channels, 1)
        elif self.how == "one way":
            self.conv = made("Conv", dims, channels, channels, 3, (1,) * (dims - 1) + (2,), 1)
        self.norm = norm(draw, dims, channels) if draw.one_in(4, "norm after") else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        dims = x.dim() - 2
        if min(x.shape[2:]) < 4:
            return x
        if self.how == "late":
            x = functional.pad(x, [0, 1] * dims)
        elif self.how == "unshuffled":
            x = functional.pixel_unshuffle(functional.pad(x, [0, x.shape[3] % 2, 0, x.shape[2] % 2]), 2)
        elif self.how == "pad, strided":
            x = functional.pad(x, [1, 0] * dims)
        return self.norm(self.conv(pooled(x, self.how)))


FORMS = (
    "max ceil", "max 3", "max 3 ceil", "max 2 step 1, sliced", "avg", "avg 3", "avg ceil", "adaptive max",
    "adaptive avg", "strided 2", "strided 4", "depthwise", "late", "unshuffled", "one way", "sliced", "interpolated",
    "pad, strided",
)  # fmt: skip


def pooled(x: Tensor, how: str) -> Tensor:
    """X [batch, channels, ...] by a pool of that name; as it is where the name is of none."""
    at = x.dim() - 4
    largest, mean = (
        (functional.max_pool2d, functional.max_pool3d)[at],
        (functional.avg_pool2d, functional.avg_pool3d)[at],
    )
    fixed = (functional.adaptive_max_pool2d, functional.adaptive_max_pool3d)[at]
    fixed_mean: Any = (functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d)[at]
    half = [length // 2 for length in x.shape[2:]]
    pools: dict[str, Callable[[], Tensor]] = {
        "max": lambda: largest(x, 2), "max ceil": lambda: largest(x, 2, ceil_mode=True),
        "max 3": lambda: largest(x, 3, 2, 1), "max 3 ceil": lambda: largest(x, 3, 2, 0, ceil_mode=True),
        "max 2 step 1, sliced": lambda: largest(x, 2, 1)[..., ::2, ::2], "avg": lambda: mean(x, 2),
        "avg 3": lambda: mean(x, 3, 2, 1, count_include_pad=False), "avg ceil": lambda: mean(x, 2, ceil_mode=True),
        "adaptive max": lambda: fixed(x, half),
        "adaptive avg": lambda: fixed_mean(x, [max(1, length - 1) for length in half]),
        "sliced": lambda: x[..., ::2, 1::2], "interpolated": lambda: functional.interpolate(x, half, mode="nearest"),
        "pad, strided": lambda: largest(x, 2),
    }  # fmt: skip
    return pools[how]() if how in pools else x


class Up(nn.Module):
    def __init__(self, draw: Draw, dims: int, inner: int, outer: int) -> None:
        super().__init__()
        forms = ["transposed 2", "nearest", "bilinear", "aligned", "to size", "transposed 3", "transposed 4"]
        further = [
            "transposed 3, cropped", "transposed grouped", "nearest size", "nearest 3", "bicubic", "shuffled", "exact",
        ]  # fmt: skip
        self.how = draw.pick("up", *forms, *forms, *further[: 7 if dims == 2 else 4])
        bias, transposed = draw.pick("bias", True, False), "ConvTranspose"
        if self.how.startswith("transposed"):
            given = {
                "transposed 2": (2, 2, 0, 0),
                "transposed 3": (3, 2, 1, 1),
                "transposed 4": (4, 2, 1, 0),
                "transposed 3, cropped": (3, 2, 0, 0),
                "transposed grouped": (2, 2, 0, 0, inner if inner == outer else 1),
            }[self.how]
            self.conv = made(transposed, dims, inner, outer, *given, bias=bias)
        else:
            wide = 4 * outer if self.how == "shuffled" else outer
            self.conv = Conv(draw, dims, inner, wide) if draw.one_in(2, "3x3") else made("Conv", dims, inner, wide, 1)
        self.norm = norm(draw, dims, outer) if draw.one_in(3, "norm after") else nn.Identity()
        self.late = draw.pick("convolved", "after", "before")
        self.fits_by = draw.pick("fits by", "pad", "crop", "interpolate", "replicate")

    def forward(self, x: Tensor, size: list[int]) -> Tensor:
        if self.how.startswith("transposed"):
            y = self.conv(x)
        elif self.how == "shuffled":
            y = functional.pixel_shuffle(self.conv(x), 2)
        else:
            y = self.conv(grown(x, self.how, size)) if self.late == "after" else grown(self.conv(x), self.how, size)
        return fitted(self.norm(y), size, self.fits_by)


def grown(x: Tensor, how: str, size: list[int]) -> Tensor:
    linear = ("bilinear", "trilinear")[x.dim() - 4]
    if how in ("to size", "nearest size"):
        mode = linear if how == "to size" else "nearest"
        return functional.interpolate(x, size=size, mode=mode)
    if how == "aligned":
        return functional.interpolate(x, scale_factor=2, mode=linear, align_corners=True)
    mode = {"bilinear": linear, "nearest 3": "nearest", "exact": "nearest-exact"}.get(how, how)
    return functional.interpolate(x, scale_factor=3 if how == "nearest 3" else 2, mode=mode)


def cropped(x: Tensor, size: Sequence[int]) -> Tensor:
    for axis, length in enumerate(size, start=2):
        x = x.narrow(axis, 0, length)
    return x


def fitted(x: Tensor, size: list[int], by: str) -> Tensor:
    if list(x.shape[2:]) == list(size):
        return x
    if by == "interpolate":
        return functional.interpolate(x, size=size, mode="nearest")
    missing = [wanted - length for wanted, length in zip(size, x.shape[2:], strict=True)]
    if by == "crop" and max(missing) <= 0:
        return cropped(x, size)
    pads = [part for gap in reversed(missing) for part in (gap // 2, gap - gap // 2)]
    mode = "replicate" if by == "replicate" and min(pads) >= 0 else "constant"
    return functional.pad(x, pads, mode)


JOINS = (
    "up, skip", "skip, up", "skip, up", "add", "multiply", "three", "image", "gated", "none", "twice", "up twice",
    "excited", "dim by name", "padded skip", "two cats",
)  # fmt: skip


class Join(nn.Module):
    """What came up and what skipped it, of one size, as one map; `width` is how many channels it has."""

    def __init__(self, draw: Draw, dims: int, up: int, skip: int, image: int) -> None:
        super().__init__()
        self.how = draw.pick("join", *JOINS)
        widths = {"add": up, "multiply": up, "three": up + 2 * skip, "image": up + skip + image, "none": up,
                  "up twice": 2 * up, "two cats": up + 2 * skip}  # fmt: skip
        self.width = widths.get(self.how, up + skip)
        same = nn.Identity() if up == skip else made("Conv", dims, skip, up, 1)
        self.fit = same if self.how in ("add", "multiply") else nn.Identity()
        self.gate, self.look = made("Conv", dims, skip + up, 1, 1), made("Conv", dims, skip, skip, 1)

    def forward(self, up: Tensor, skip: Tensor, image: Tensor) -> Tensor:
        both = torch.cat([skip, up], 1)
        resized = functional.interpolate(image, size=up.shape[2:]) if self.how == "image" else image
        joins: dict[str, Callable[[], Tensor]] = {
            "up, skip": lambda: torch.cat([up, skip], dim=1),
            "skip, up": lambda: both,
            "add": lambda: up + self.fit(skip),
            "multiply": lambda: self.fit(skip) * up,
            "three": lambda: torch.cat([skip, up, skip.tanh()], 1),
            "image": lambda: torch.cat([up, skip, resized], 1),
            "gated": lambda: torch.cat([skip * torch.sigmoid(self.gate(both)), up], 1),
            "none": lambda: up,
            "twice": lambda: torch.cat([up, skip], 1) + both[:, torch.arange(both.shape[1] - 1, -1, -1)],
            "up twice": lambda: torch.cat([up, up], 1),
            "excited": lambda: torch.cat(
                [skip * self.look(skip.mean(list(range(2, skip.dim())), True)).sigmoid(), up], 1
            ),
            "dim by name": lambda: torch.cat(tensors=(up, skip), dim=1 - up.dim()),
            "padded skip": lambda: torch.cat([up, functional.pad(skip[..., 1:], (1, 0))], 1),
            "two cats": lambda: torch.cat([torch.cat([skip, up], 1), skip], 1),
        }
        return joins[self.how]()
