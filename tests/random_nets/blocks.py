"""Blocks of random nets: each takes a map [batch, inner, ...] to one of `outer` channels and the same size."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.random_nets.layers import Conv, Draw, activation, cropped, made, norm

MOST_PIXELS = 600  # of a map in whose pixels attention is paid to one another


def plain(draw: Draw, dims: int, inner: int, outer: int, side: int | None = None) -> nn.Sequential:
    conv, dropped = Conv(draw, dims, inner, outer, side=side), nn.Dropout(0.3)
    order = draw.pick("order", *["conv, norm, act"] * 3, "dropout", "act, norm", "norm first", "dropout last")
    after = norm(draw, dims, inner if order == "norm first" else outer)
    act = activation(draw, dims, inner if order == "norm first" else outer)
    layers = {
        "conv, norm, act": [conv, after, act],
        "dropout": [conv, after, made("Dropout", dims, 0.2), act],
        "act, norm": [conv, act, after],
        "norm first": [after, act, conv],
        "dropout last": [conv, after, act, dropped],
    }
    return nn.Sequential(*layers[order])


class Residual(nn.Module):
    """Two convolutions and what skips them: the value itself or a 1×1 convolution of it, added in one of many ways."""

    def __init__(self, draw: Draw, dims: int, inner: int, outer: int) -> None:
        super().__init__()
        self.first, self.second = (
            plain(draw.at("first"), dims, inner, outer),
            Conv(draw.at("second"), dims, outer, outer),
        )
        self.norm, self.act = norm(draw, dims, outer), activation(draw, dims, outer)
        self.short = nn.Identity() if inner == outer else made("Conv", dims, inner, outer, 1)
        self.added = draw.pick("added", "+", "short first", "scaled", "+=", "alpha", "in fp32", "layer scale", "twice")
        self.gamma = nn.Parameter(torch.rand(outer, *[1] * dims) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        y, short = self.norm(self.second(self.first(x))), self.short(x)
        if self.added == "+=":
            y += short
        elif self.added == "short first":
            y = short + y
        elif self.added == "in fp32":
            y = (y + short.float()).to(x.dtype)
        elif self.added == "alpha":
            y = torch.add(y, short, alpha=0.5)
        elif self.added == "layer scale":
            y = self.gamma * y + short
        else:
            y = {"+": y + short, "scaled": y * 0.3 + short, "twice": y + short + y}[self.added]
        return self.act(y)


class Dense(nn.Module):
    def __init__(self, draw: Draw, dims: int, inner: int, outer: int) -> None:
        super().__init__()
        self.grown = draw.pick("growth", 8, 16, 5, 12)
        self.first = plain(draw.at("first"), dims, inner, self.grown)
        self.second = plain(draw.at("second"), dims, inner + self.grown, self.grown)
        self.mix = made("Conv", dims, inner + 2 * self.grown, outer, 1, bias=draw.pick("bias", True, False))

    def forward(self, x: Tensor) -> Tensor:
        one = torch.cat([x, self.first(x)], 1)
        return self.mix(torch.cat([one, self.second(one)], 1))


class Excited(nn.Module):
    """A block and squeeze-and-excitation of its map, and perhaps a 1×1 convolution that reads it."""

    def __init__(self, draw: Draw, dims: int, inner: int, outer: int) -> None:
        super().__init__()
        self.block = plain(draw, dims, inner, outer)
        less = draw.pick("reduced to", 8, 4, 3, 16)
        self.reduce, self.expand = made("Conv", dims, outer, less, 1), made("Conv", dims, less, outer, 1)
        self.act, self.pool = activation(draw.at("inner"), dims, less), draw.pick("pool", "adaptive", "mean", "linear")
        self.gate = draw.pick("gate", nn.Sigmoid(), nn.Hardsigmoid(), nn.Sigmoid())
        self.mix = draw.pick("mixed", None, made("Conv", dims, outer, outer, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(x)
        axes = list(range(2, x.dim()))
        pooled = x.mean(axes, keepdim=True)
        if self.pool == "adaptive":
            pooled = (functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d)[x.dim() - 4](x, 1)
        elif self.pool == "linear":
            pooled = pooled.flatten(1).reshape(x.shape[0], x.shape[1], *[1] * len(axes))
        x = x * self.gate(self.expand(self.act(self.reduce(pooled))))
        return x if self.mix is None else self.mix(x)


class Inverted(nn.Module):
    def __init__(self, draw: Draw, dims: int, inner: int, outer: int) -> None:
        super().__init__()
        wide = inner * draw.pick("expansion", 2, 1, 3)
        side = draw.pick("window", 3, 5, 7)
        self.expand = plain(draw.at("expand"), dims, inner, wide, side=1)
        self.depthwise = made("Conv", dims, wide, wide, side, 1, side // 2, groups=wide, bias=False)
        self.norm, self.act = norm(draw, dims, wide), activation(draw, dims, wide)
        self.project = made("Conv", dims, wide, outer, 1)
        self.adds = inner == outer

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.act(self.norm(self.depthwise(self.expand(x)))))
        return x + y if self.adds else y


class Attention(nn.Module):
    def __init__(self, draw: Draw, dims: int, inner: int, outer: int) -> None:
        super().__init__()
        self.norm = norm(draw, dims, inner)
        self.into, self.out = made("Conv", dims, inner, 3 * inner, 1), made("Conv", dims, inner, outer, 1)
        self.by = draw.pick("by", "softmax", "library")
        self.short = nn.Identity() if inner == outer else made("Conv", dims, inner, outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.into(self.norm(x)).flatten(2).chunk(3, dim=1)
        if x[0, 0].numel() <= MOST_PIXELS:
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        if self.by == "library":
            seen = functional.scaled_dot_product_attention(q, k, v)
        else:
            seen = (q @ k.transpose(1, 2) * q.shape[-1] ** -0.5).softmax(-1) @ v
        seen = seen.transpose(1, 2) if x[0, 0].numel() <= MOST_PIXELS else seen
        return self.out(seen.reshape(x.shape)) + self.short(x)


class Branches(nn.Module):
    """Several convolutions of one value, joined, added or multiplied; also the same one on both halves or twice."""

    def __init__(self, draw: Draw, dims: int, inner: int, outer: int) -> None:
        super().__init__()
        self.one, self.two = (plain(draw.at(name), dims, inner, outer) for name in ("one", "two"))
        self.joined = draw.pick(
            "joined", "cat", "add", "multiply", "maximum", "stack", "where", "shared twice", "cat three"
        )
        wide = {"cat": 2, "cat three": 3}.get(self.joined, 1) * outer
        self.mix = plain(draw.at("mix"), dims, wide, outer, side=1)
        self.shared = plain(draw.at("shared"), dims, outer, outer)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.one(x), self.two(x)
        if self.joined == "shared twice":
            return self.mix(self.shared(a) + self.shared(self.shared(b)))
        joins: dict[str, Callable[[], Tensor]] = {
            "cat": lambda: torch.cat([a, b], 1), "cat three": lambda: torch.cat([b, a, a + b], 1), "add": lambda: a + b,
            "multiply": lambda: a * torch.sigmoid(b), "maximum": lambda: torch.maximum(a, b),
            "stack": lambda: torch.stack([a, b], 1).mean(1), "where": lambda: torch.where(a > 0, a, b),
        }  # fmt: skip
        return self.mix(joins[self.joined]())


class Halves(nn.Module):
    """A value split along its channels, its parts treated apart, shuffled and joined again."""

    def __init__(self, draw: Draw, dims: int, inner: int, outer: int) -> None:
        super().__init__()
        self.first = plain(draw, dims, inner, 2 * outer)
        self.left = plain(draw.at("left"), dims, outer, outer)
        self.by = draw.pick("by", "chunk", "split", "slice", "channel shuffle", "unbind", "pixels in a row")
        self.mix = made("Conv", dims, 2 * outer, outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        half = x.shape[1] // 2
        if self.by == "split":
            a, b = torch.split(x, [half, half], 1)
        elif self.by == "slice":
            a, b = x[:, ::2], x[:, half:]
        elif self.by == "unbind":
            a, b = x.unflatten(1, (2, half)).unbind(1)
        else:
            a, b = x.chunk(2, 1)
        joined = torch.cat([self.left(a), b], 1)
        if self.by == "channel shuffle":
            joined = joined.view(x.shape[0], 2, half, *x.shape[2:]).transpose(1, 2).reshape(x.shape)
        elif self.by == "pixels in a row":
            joined = joined.flatten(2).permute(0, 2, 1).contiguous().transpose(1, 2).view(x.shape)
        return self.mix(joined)


KINDS = (
    "shift", "fp32 between", "grid", "rolled", "transposed", "table", "cat of one", "constant", "cat with a buffer",
    "mean of a row", "cat in fp32", "noise", "filled",
)  # fmt: skip


class Odd(nn.Module):
    """A block and something that few nets do: constants, casts, buffers, shifts, sums over an axis."""

    def __init__(self, draw: Draw, dims: int, inner: int, outer: int) -> None:
        super().__init__()
        self.block, self.after = plain(draw, dims, inner, outer), plain(draw.at("after"), dims, outer, outer)
        self.kind = draw.pick("kind", *KINDS)
        self.shift, self.table = (
            nn.Parameter(torch.randn(1, outer, *[1] * dims)),
            nn.Parameter(torch.randn(1, 8, *[4] * dims)),
        )
        self.mix = made("Conv", dims, outer + 8, outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(x)
        rows = torch.linspace(-1, 1, x.shape[-1], device=x.device, dtype=x.dtype)
        if self.kind in ("cat with a buffer", "table"):
            table = self.table.repeat(x.shape[0], 1, *[-(-length // 4) for length in x.shape[2:]])
            table = cropped(table, x.shape[2:])
            return self.mix(torch.cat([x, table] if self.kind == "table" else [table.relu(), self.after(x)], 1))
        changes: dict[str, Callable[[], Tensor]] = {
            "shift": lambda: x + self.shift,
            "fp32 between": lambda: (x.float().sigmoid() * x.double().float()).to(x.dtype),
            "grid": lambda: x * rows,
            "rolled": lambda: torch.roll(x, (1, -2), (-1, -2)),
            "transposed": lambda: x.transpose(-1, -2).contiguous().transpose(-1, -2),
            "cat of one": lambda: torch.cat([x], 1),
            "constant": lambda: x * torch.tensor(0.5) + 1.0 / 3,
            "mean of a row": lambda: x - x.mean(-1, keepdim=True),
            "cat in fp32": lambda: torch.cat([x.float(), x.float().abs()], 1)[:, x.shape[1] // 2 :][:, : x.shape[1]].to(
                x
            ),
            "noise": lambda: x + torch.zeros_like(x) + torch.full_like(x, 0.1),
            "filled": lambda: x.masked_fill(x > 1, 0.5),
        }
        return self.after(changes[self.kind]())


def twice(draw: Draw, dims: int, inner: int, outer: int) -> nn.Module:
    return nn.Sequential(plain(draw.at("one"), dims, inner, outer), plain(draw.at("two"), dims, outer, outer))


BLOCKS: dict[str, Callable[[Draw, int, int, int], nn.Module]] = {
    "plain": twice, "residual": Residual, "dense": Dense, "excited": Excited, "inverted": Inverted,
    "attention": Attention, "branches": Branches, "halves": Halves, "odd": Odd,
}  # fmt: skip


def block(draw: Draw, dims: int, inner: int, outer: int) -> nn.Module:
    kind = draw.pick("block", "plain", "plain", "plain", *BLOCKS, "residual", "branches")
    return BLOCKS[kind](draw.at(kind), dims, inner, outer)
