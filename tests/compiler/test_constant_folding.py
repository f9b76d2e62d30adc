"""What a net computes from its weights and constants alone is computed once, exactly, and then its kernels know it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.artifact import load, save
from pipeline.compiler.graph.exported_net import ExportedNet, export
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.passes import FOR_ANY_BACKEND, rewrite
from pipeline.compiler.passes.constant_folding import STRAIGHT, add_parallel_convolutions, fold_constants
from tests.compiler.nets import image, lively
from tests.compiler.nets_that_passes_leave import Made, conv
from tests.compiler.rewriting import called, distance, layers, lowered, rewritten_from


class StandardConv(nn.Conv2d):
    """A convolution whose weight is standardised by a batch norm at each call, as BiT's ResNets have it."""

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = functional.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-6)
        return functional.conv2d(x, weight.reshape_as(self.weight), self.bias, self.stride, self.padding)


class Standardised(nn.Module):
    """Convolutions whose weights, and a batch norm whose weight, are computed of parameters and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = StandardConv(3, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding=1)
        self.masked, self.halves = nn.Conv2d(32, 32, 3, padding=1), nn.Parameter(torch.randn(2, 16, 32, 3, 3) / 17)
        self.norm, self.mask = nn.BatchNorm2d(32), nn.Buffer((torch.rand(32, 32, 3, 3) > 0.3).float())
        self.gamma, self.alike = nn.Parameter(torch.randn(32) / 9), nn.Parameter(torch.ones(16, 32, 3, 3) / 17)

    def forward(self, batch: Tensor) -> Tensor:
        weight = self.second.weight
        weight = (weight - weight.mean((1, 2, 3), keepdim=True)) / weight.std((1, 2, 3), keepdim=True) / 17
        x = functional.conv2d(self.first(batch).relu(), weight, self.second.bias, padding=1).relu()
        x = functional.conv2d(x, self.masked.weight * self.mask, self.masked.bias, padding=1)
        mean, variance = self.norm.running_mean, self.norm.running_var
        x = functional.batch_norm(x, mean, variance, 1 + self.gamma, self.norm.bias).relu()
        x = functional.conv2d(x, self.halves.reshape(32, 32, 3, 3), padding=1).relu()
        return functional.conv2d(x, torch.cat([self.alike, self.halves[0] * 2]), padding=1)


@pytest.fixture(scope="module")
def standardised() -> tuple[Standardised, Tensor]:
    torch.manual_seed(0)
    return Standardised().eval(), image(2, 3, 16, 16)


def computed_once(net: nn.Module, batch: Tensor, dtype: torch.dtype = torch.float16) -> ExportedNet:
    made = export(net.eval(), batch, dtype)
    rewrite(made, [fold_constants])
    return made


def known_weights(net: ExportedNet) -> list[Tensor]:
    """The weights of a net's convolutions that passes know, [out, in, k, k] each, in order."""
    convs = [node for node in net.module.graph.nodes if str(node.target) == "aten.conv2d.default"]
    return [weight for conv in convs if (weight := net.constant(conv.args[1])) is not None]


@torch.no_grad()
def test_weights_are_computed_in_fp32_and_rounded_once(standardised: tuple[Standardised, Tensor]) -> None:
    net, batch = standardised
    made = computed_once(net, batch)
    wanted = net.second.weight
    wanted = (wanted - wanted.mean((1, 2, 3), keepdim=True)) / wanted.std((1, 2, 3), keepdim=True) / 17
    found = known_weights(made)
    assert len(found) == 5
    assert {weight.dtype for weight in found} == {torch.float32}
    assert torch.allclose(found[1], wanted, rtol=1e-6, atol=0)
    assert torch.equal(found[2], net.masked.weight * net.mask)
    stored = [buffer for buffer in made.module.buffers() if buffer.shape == (32, 32, 3, 3)]
    assert any(torch.equal(buffer, found[1].half()) for buffer in stored)
    computing = {f"aten.{name}" for name in ("mean.dim", "std.correction", "std.dim", "mul.Tensor", "cat.default")}
    assert not (computing | {"aten.add.Tensor"}) & set(called(made.module))


def test_kernels_take_layers_and_norms_are_folded(standardised: tuple[Standardised, Tensor], tmp_path: Path) -> None:
    net, batch = standardised
    with torch.no_grad():
        wanted = net(batch)
    made = rewritten_from(net, batch, torch.float32)
    assert distance(made.module, batch, wanted) < 1e-6
    assert len(layers(made)) == 5
    assert len(made.matched["fold_batch_norm"]) == 1
    graph = lower(rewritten_from(net, batch, torch.float16), Plan())
    assert distance(graph, batch, wanted) < 3e-3
    save(graph, batch, tmp_path)
    assert torch.equal(load(tmp_path)(batch), graph(batch))


class Written(nn.Module):
    """What a test writes of an image and this net's parameters, a vector and a kernel."""

    def __init__(self, form: Callable[["Written", Tensor], Tensor]) -> None:
        super().__init__()
        self.vector, self.kernel = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3, 3, 3, 3))
        self.steps, self.form = nn.Buffer(torch.zeros(1)), form

    def forward(self, batch: Tensor) -> Tensor:
        return self.form(self, batch)


def counted(net: Written, x: Tensor) -> Tensor:
    net.steps.add_(1)
    return x + net.steps * 2


STAYS: dict[str, Callable[[Written, Tensor], Tensor]] = {
    "random": lambda net, x: x + torch.randn(3, 1, 1) * net.vector[:, None, None],
    "what depends on the image": lambda net, x: functional.conv2d(x, net.kernel * x.mean()),
    "a vector's broadcast to a map": lambda net, x: x + (net.vector[:, None, None] * torch.ones(3, 512, 512)),
    "a view that no layer reads as its weight": lambda net, x: x * net.vector[:, None, None],
    "a map of one number": lambda _, x: x + torch.full((3, 16, 16), 2.0).reshape(3, 16, 16),
    "a buffer that the net counts in": counted,
    "a weight as it is": lambda net, x: functional.conv2d(x, net.kernel),
}


@pytest.mark.parametrize("case", STAYS)
def test_it_leaves(case: str) -> None:
    side = 512 if "broadcast" in case else 16
    assert computed_once(Written(STAYS[case]), image(1, 3, side, side)).matched["fold_constants"] == []


def test_only_what_is_small_enough_is_kept() -> None:
    """A map's grid of positions is, up to a mebibyte; what is made of it beyond that is made at each call."""

    def grid(_: Written, x: Tensor) -> Tensor:
        rows, columns = torch.meshgrid(torch.arange(512.0), torch.arange(512.0), indexing="ij")
        return x + torch.stack([rows, columns, rows * 0]).sin()

    made = computed_once(Written(grid), image(1, 3, 512, 512), torch.float32)
    kept = [made.constant(node) for node in made.module.graph.nodes]
    assert max(constant.numel() * 4 for constant in kept if constant is not None) == 2**20
    assert "aten.sin.default" in called(made.module)


@pytest.mark.parametrize(
    ("added", "wanted"),
    [
        (lambda _, x: x + torch.arange(16).reshape(4, 4) % 3, torch.arange(16).reshape(4, 4) % 3),
        (lambda _, x: x + torch.arange(4).to(x) / 3, torch.arange(4) / 3),
    ],
)
def test_a_grid_is_exact_until_it_is_rounded(added: Callable[[Written, Tensor], Tensor], wanted: Tensor) -> None:
    made = computed_once(Written(added), image(1, 3, 4, 4))
    (add,) = [node for node in made.module.graph.nodes if str(node.target) == "aten.add.Tensor"]
    found = made.constant(add.args[1])
    assert found is not None
    assert torch.equal(found, wanted)


def biased(net: Written, x: Tensor) -> Tensor:
    """Attention among an image's rows, with a bias for each pair that is looked up in a table, as Swin has it."""
    bias = net.kernel.reshape(27, 3)[torch.arange(64) % 27].reshape(8, 8, 3).permute(2, 0, 1).contiguous()[None]
    return functional.scaled_dot_product_attention(x, x, x, attn_mask=bias)


def test_what_is_computed_once_lies_as_its_readers_want_it() -> None:
    """A mask of attention with its heads side by side would be copied at each call; a weight has its channels so."""
    made = computed_once(Written(biased), image(1, 3, 8, 8))
    (bias,) = [part for part in made.module.buffers() if part.shape == (1, 3, 8, 8)]
    assert bias.is_contiguous()
    made = computed_once(Written(lambda net, x: functional.conv2d(x, (net.kernel * 2).contiguous())), image(1, 3, 8, 8))
    assert made.matched["fold_constants"]
    (weight,) = [part for part in made.module.buffers() if part.shape == (3, 3, 3, 3)]
    assert weight.is_contiguous(memory_format=torch.channels_last)
    made = computed_once(Written(lambda net, x: x + (net.kernel * 2).contiguous()), image(3, 3, 3, 3))
    (added,) = [part for part in made.module.buffers() if part.shape == (3, 3, 3, 3)]
    assert added.is_contiguous(memory_format=torch.channels_last)


def test_what_torch_cannot_compute_once_stays_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = export(Written(lambda net, x: x * net.vector.exp()[:, None, None]).eval(), image(1, 3, 4, 4), torch.float16)
    (exp,) = [node for node in net.module.graph.nodes if str(node.target) == "aten.exp.default"]
    monkeypatch.setattr(exp.target, "_op", no_memory)
    assert list(fold_constants(net)) == []


def no_memory(*_: object) -> Tensor:
    raise RuntimeError("no memory")


@torch.no_grad()
def test_one_that_the_net_s_own_autocast_runs_is_not_folded() -> None:
    """Its convolution reads bf16, and would be given weights in the net's type; the convolution before it is folded."""

    def both(x: torch.Tensor, first: nn.Module, before: nn.Module, second: nn.Module, after: nn.Module) -> torch.Tensor:
        y = before(first(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made: torch.Tensor = after(second(y))
        return made.float()

    net = lively(Made(both, conv(3, 8), nn.BatchNorm2d(8), conv(8, 8), nn.BatchNorm2d(8)))
    batch = image(2, 3, 9, 9)
    made = export(net, batch, torch.float32)
    rewrite(made, FOR_ANY_BACKEND)
    assert made.matched["fold_batch_norm"] == ["layers.0"]
    torch.testing.assert_close(made.module(batch), net(batch), rtol=2e-2, atol=2e-2)


def normed(inner: int, outer: int, size: int, **options: Any) -> nn.Sequential:
    conv = nn.Conv2d(inner, outer, size, padding=options.pop("padding", size // 2), bias=False, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(outer))


def branched(*branches: nn.Module) -> nn.Module:
    def call(x: Tensor, first: nn.Module, *added: nn.Module) -> Tensor:
        y = first(x)
        answer: Tensor = sum(one(y) for one in added)
        return answer.relu()

    return Made(call, nn.Conv2d(3, 16, 1), *branches)


ALONE: dict[str, Any] = {"groups": 16}
BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "RepVGG": lambda: branched(normed(16, 16, 3), normed(16, 16, 1), nn.BatchNorm2d(16)),
    "strided": lambda: branched(normed(16, 16, 3, stride=2), normed(16, 16, 1, stride=2)),
    "dilated": lambda: branched(normed(16, 16, 3, padding=2, dilation=2), normed(16, 16, 1, dilation=2)),
    "even windows": lambda: branched(nn.Conv2d(16, 16, 4, 2, 2), nn.Conv2d(16, 16, 2, 2, 1)),
    "MobileOne": lambda: branched(
        nn.BatchNorm2d(16), normed(16, 16, 1, **ALONE), *[normed(16, 16, 3, **ALONE) for _ in range(4)]),
    "RepViT": lambda: Made(
        lambda x, first, one, other, norm: (lambda y: norm(one(y) + other(y) + y))(first(x)),
        nn.Conv2d(3, 16, 1), normed(16, 16, 3, **ALONE), nn.Conv2d(16, 16, 1, **ALONE), nn.BatchNorm2d(16)),
    "ACNet": lambda: branched(
        nn.Conv2d(16, 16, (1, 3), padding=(0, 1)), nn.Conv2d(16, 16, (3, 1), padding="same"), normed(16, 16, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_of_branches_becomes_one_convolution(name: str) -> None:
    torch.manual_seed(0)
    net, batch = lively(BLOCKS[name]()), image(2, 3, 7, 9)
    found = export(net, batch, torch.float32)
    rewrite(found, FOR_ANY_BACKEND)
    left = {str(node.target) for node in found.module.graph.nodes if node.op == "call_function"}
    convolutions = [node for node in found.module.graph.nodes if str(node.target) in STRAIGHT]
    assert len(convolutions) == 2
    assert left <= {*STRAIGHT, "aten.relu.default", "aten._to_copy.default", "aten.to.dtype"}
    with torch.no_grad():
        assert distance(found.module, batch, net(batch)) < 1e-6


def test_what_is_no_branch_is_still_added() -> None:
    torch.manual_seed(0)

    def summed(x: Tensor, first: nn.Module, one: nn.Module, other: nn.Module, last: nn.Module) -> Tensor:
        y = first(x)
        return one(y) + (y.tanh() + other(y)) + (y + last(y.tanh()) + y)

    net = lively(Made(summed, nn.Conv2d(3, 16, 1), *[normed(16, 16, side) for side in (1, 3, 3)]))
    batch = image(2, 3, 7, 9)
    found = rewritten_from(net, batch)
    assert found.matched["add_parallel_convolutions"] == ["layers.2.0"]
    assert [layer.name for layer in layers(found).values()] == ["layers.2.0", "layers.3.0"]
    with torch.no_grad():
        assert distance(lowered(found), batch, net(batch)) < 1e-3


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_a_window_padded_by_a_row_more_on_one_side_is_left() -> None:
    net, batch = (
        Made(lambda x, a, b: a(x) + b(x), nn.Conv2d(3, 8, 4, padding="same"), conv(3, 8, 1)),
        image(1, 3, 7, 9),
    )
    found = export(net.eval(), batch, torch.float32)
    assert list(add_parallel_convolutions(found)) == []
