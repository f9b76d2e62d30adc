"""A random U-Net-like net, and what it takes."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.model_output import with_output
from pipeline.compiler.batch import Batch
from tests.random_nets.blocks import block
from tests.random_nets.layers import Conv, Down, Draw, Join, Up, made

CHANNELS = (16, 16, 32, 64, 8, 8, 24, 3, 5, 12, 20, 40, 100)


class RandomNet(nn.Module):
    def __init__(self, draw: Draw, dims: int) -> None:
        super().__init__()
        self.image, depth = draw.pick("image channels", 3, 1, 2, 4, 8), draw.pick("depth", 1, 2, 2, 3)
        widths = [draw.pick(f"width {level}", *CHANNELS) for level in range(depth + 1)]
        self.second = draw.pick("second input", *["none"] * 6, "image", "vector", "mask", "kind")
        self.stem = self.stem_of(draw.at("stem"), dims, widths[0])
        blocks, downs, ups, joins, after = [], [], [], [], []
        for level in range(depth):
            at, inner, outer = draw.at(f"level {level}"), widths[level], widths[level + 1]
            blocks.append(block(at.at("enter"), dims, inner, inner))
            downs.append(Down(at, dims, inner))
            grown = at.pick("grown to", inner, outer)
            ups.append(Up(at.at("up"), dims, outer, grown))
            joins.append(Join(at, dims, grown, inner, self.image))
            after.append(block(at.at("leave"), dims, joins[-1].width, inner))
        self.blocks, self.downs, self.ups = nn.ModuleList(blocks), nn.ModuleList(downs), nn.ModuleList(ups)
        self.joins, self.after = nn.ModuleList(joins), nn.ModuleList(after)
        self.changes = nn.ModuleList([made("Conv", dims, widths[i], widths[i + 1], 1) for i in range(depth)])
        self.bottom = block(draw.at("bottom"), dims, widths[-1], widths[-1])
        self.enter, self.look = nn.Linear(6, widths[0]), nn.Embedding(5, widths[0])
        self.pixels = made("Conv", dims, 1, widths[0], 3, padding=1)
        self.leave(draw.at("head"), dims, widths)

    def stem_of(self, draw: Draw, dims: int, width: int) -> nn.Module:
        form = draw.pick("form", "3x3", "3x3", "any", "7x7 step 2", "3x3 step 2", "4x4 patches", "clamped", "rounded")
        self.first = form
        stems: dict[str, Callable[[], nn.Module]] = {
            "7x7 step 2": lambda: made("Conv", dims, self.image, width, 7, 2, 3, bias=False),
            "3x3 step 2": lambda: made("Conv", dims, self.image, width, 3, 2, 1),
            "4x4 patches": lambda: made("Conv", dims, self.image, width, 4, 4),
            "any": lambda: Conv(draw, dims, self.image, width),
        }
        return stems.get(form, lambda: made("Conv", dims, self.image, width, 3, padding=1))()

    def leave(self, draw: Draw, dims: int, widths: list[int]) -> None:
        classes = draw.pick("classes", 2, 1, 3, 5, 16, 21)
        side = draw.pick("window", 1, 1, 3)
        self.head = made("Conv", dims, widths[0], classes, side, padding=side // 2, bias=draw.pick("bias", True, False))
        self.deep = made("Conv", dims, widths[-1], classes, 1)
        ends = [
            "logits", "logits", "softmax", "sigmoid", "deep", "argmax", "residual", "scaled", "upscaled", "log softmax",
        ]  # fmt: skip
        self.end = draw.pick("end", *ends)
        self.answer = draw.pick("answer", "tensor", "tensor", "tuple", "dict", "list")

    def forward(self, image: Tensor, other: Tensor | None = None) -> object:
        x = self.read(image, other)
        skips = []
        for enter, down, change in zip(self.blocks, self.downs, self.changes, strict=True):
            skips.append(enter(x))
            x = change(down(skips[-1]))
        low = x = self.bottom(x)
        for level in reversed(range(len(skips))):
            up = self.ups[level](x, list(skips[level].shape[2:]))
            x = self.after[level](self.joins[level](up, skips[level], image))
        return self.packed(self.ended(self.head(x), low, image), low)

    def read(self, image: Tensor, other: Tensor | None) -> Tensor:
        if self.first == "clamped":
            image = image.clamp(-1, 1) * 2 - 0.1
        elif self.first == "rounded":
            image = (image * 8).to(torch.int32).to(image.dtype) / 8
        x: Tensor = self.stem(image)
        ones = [1] * (x.dim() - 2)
        if other is None:
            return x
        if self.second == "image":
            x = x + self.stem(other)
        elif self.second == "vector":
            x = x + self.enter(other).reshape(*x.shape[:2], *ones)
        elif self.second == "kind":
            x = x * self.look(other).reshape(*x.shape[:2], *ones)
        elif self.second == "mask":
            x = x + functional.interpolate(self.pixels(other.to(image.dtype)), size=x.shape[2:])
        return x

    def ended(self, logits: Tensor, low: Tensor, image: Tensor) -> Tensor:
        linear = ("bilinear", "trilinear")[image.dim() - 4]
        size = list(logits.shape[2:])
        ends: dict[str, Callable[[], Tensor]] = {
            "logits": lambda: logits,
            "softmax": lambda: logits.softmax(1),
            "log softmax": lambda: functional.log_softmax(logits, dim=1),
            "sigmoid": lambda: torch.sigmoid(logits),
            "deep": lambda: (logits + functional.interpolate(self.deep(low), size=size, mode=linear)) / 2,
            "argmax": lambda: torch.cat([logits, logits.argmax(1, keepdim=True).to(logits.dtype) * 0.0], 1),
            "residual": lambda: functional.interpolate(image, size=size)[:, :1] - logits,
            "scaled": lambda: 0.5 * logits + torch.tensor([0.25], device=logits.device),
            "upscaled": lambda: functional.interpolate(
                logits, size=list(image.shape[2:]), mode=linear, align_corners=False
            ),
        }
        return ends[self.end]()

    def packed(self, logits: Tensor, low: Tensor) -> object:
        forms = {"tuple": (logits, low), "dict": {"out": logits, "low": low}, "list": [low.mean(), logits]}
        return forms.get(self.answer, logits)


def random_net(draw: Draw) -> tuple[nn.Module, list[Batch]]:
    dims = draw.pick("dims", *[2] * 8, 3, 3)
    torch.manual_seed(draw.seed)
    net = RandomNet(draw, dims).eval()
    lively(net)
    batch = draw.pick("batch", 1, 2, 3)
    sizes = (16, 32, 16, 24, 8, 17, 21, 30) if dims == 2 else (8, 16, 8, 9)
    image = [draw.pick(f"size {axis}", *sizes) for axis in range(dims)]
    outputs: dict[str, int | str] = {"tuple": 0, "dict": "out", "list": 1}
    return with_output(net, outputs.get(net.answer)), [inputs(net, [batch, net.image, *image]) for _ in range(2)]


def lively(net: nn.Module) -> None:
    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d)) and layer.bias is not None:
            nn.init.normal_(layer.bias, 0, 0.2)


def inputs(net: RandomNet, shape: list[int]) -> Batch:
    image = torch.randn(shape)
    others = {
        "image": torch.randn(shape),
        "vector": torch.randn(shape[0], 6),
        "mask": torch.rand(shape[0], 1, *shape[2:]) > 0.4,
        "kind": torch.randint(5, (shape[0],)),
    }
    if net.second == "none":
        return Batch((image,))
    return Batch((image, others[net.second]), ("image", "other"))
