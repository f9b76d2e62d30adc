"""How random nets make a map smaller and larger, and join what comes up with what skipped."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.random_nets.draw import Draw
from tests.random_nets.layers import Conv, made, norm


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
        """X [batch, channels, ...] made smaller; a map of one pixel a side stays."""
        dims = x.dim() - 2
        if min(x.shape[2:]) < 4:
            return x
        if self.how == "late":
            x = functional.pad(x, [0, 1] * dims)
        elif self.how == "unshuffled":
            x = functional.pixel_unshuffle(functional.pad(x, [0, x.shape[3] % 2, 0, x.shape[2] % 2]), 2)
        elif self.how == "pad, strided":
            x = functional.pad(x, [1, 0] * dims)
        smaller: Tensor = self.norm(self.conv(pooled(x, self.how)))
        return smaller


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
        "max": lambda: largest(x, 2),
        "max ceil": lambda: largest(x, 2, ceil_mode=True),
        "max 3": lambda: largest(x, 3, 2, 1),
        "max 3 ceil": lambda: largest(x, 3, 2, 0, ceil_mode=True),
        "max 2 step 1, sliced": lambda: largest(x, 2, 1)[..., ::2, ::2],
        "avg": lambda: mean(x, 2),
        "avg 3": lambda: mean(x, 3, 2, 1, count_include_pad=False),
        "avg ceil": lambda: mean(x, 2, ceil_mode=True),
        "adaptive max": lambda: fixed(x, half),
        "adaptive avg": lambda: fixed_mean(x, [max(1, length - 1) for length in half]),
        "sliced": lambda: x[..., ::2, 1::2],
        "interpolated": lambda: functional.interpolate(x, half, mode="nearest"),
        "pad, strided": lambda: largest(x, 2),
    }
    return pools[how]() if how in pools else x


class Up(nn.Module):
    """A map of about twice the height and width, then of just a wanted size."""

    def __init__(self, draw: Draw, dims: int, inner: int, outer: int) -> None:
        super().__init__()
        forms = ["transposed 2", "nearest", "bilinear", "aligned", "to size", "transposed 3", "transposed 4"]
        further = [
            "transposed 3, cropped",
            "transposed grouped",
            "nearest size",
            "nearest 3",
            "bicubic",
            "shuffled",
            "exact",
        ]
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
        """Up [batch, up, ...] and skip [batch, skip, ...] joined; the image may be of another size."""
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
