"""Group norms of summed statistics: as factor and shift, by own kernels, in nets as SegResNet and diffusers' are."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from pipeline.compiler.artifact import load, save
from pipeline.compiler.graph.fp8_values import fp8_groups, reads_fp8
from pipeline.compiler.passes.norms import factor_and_shift, variance_and_mean
from pipeline.compiler.tuning.own_norms import IN_A_PASS, WHEN_READ, found_passes, put_own_norms, put_pass
from tests.compiler import rewriting
from tests.compiler.nets import image, lively
from tests.compiler.nets_that_passes_leave import Made
from tests.compiler.test_own_norms import NARROW, by_references, by_tile, tuner

__all__ = ["by_references"]  # a fixture, which every test here asks for by itself
BATCH = image(2, 3, 16, 24)


def group_norm(groups: int, channels: int) -> nn.GroupNorm:
    norm = nn.GroupNorm(groups, channels)
    nn.init.uniform_(norm.weight, 0.5, 1.5)
    nn.init.normal_(norm.bias, std=0.2)
    return norm


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(group_norm(8, channels) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        value = self.convs[0](self.norms[0](x).relu())
        return self.convs[1](self.norms[1](value).relu()) + x


class PreActivated(nn.Module):
    """A small SegResNet, with groups of four and of eight channels; a first layer whose answer lies far from zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, 2, 1, bias=False)
        self.high, self.last, self.low = Residual(32), Residual(32), nn.Sequential(Residual(64), Residual(64))
        self.narrow, self.head = nn.Conv2d(64, 32, 1, bias=False), nn.Conv2d(32, 2, 1)
        self.norm = group_norm(8, 32)
        assert self.first.bias is not None
        nn.init.uniform_(self.first.bias, 5.0, 9.0)

    def forward(self, batch: Tensor) -> Tensor:
        high = self.high(self.first(batch))
        low = functional.interpolate(self.narrow(self.low(self.down(high))), scale_factor=2.0)
        return self.head(self.norm(self.last(low + high)).relu())


def diffusing() -> nn.Module:
    """Group norms and SiLU between convolutions, as diffusers' UNet2DModel has; groups of 4 and of 16 channels."""
    parts = [
        part
        for inner, outer, groups in ((3, 32, 8), (32, 64, 4), (64, 32, 8))
        for part in (nn.Conv2d(inner, outer, 3, padding=1), group_norm(groups, outer), nn.SiLU())
    ]
    return nn.Sequential(*parts, nn.Conv2d(32, 4, 3, padding=1))


def between(channels: int, norm: nn.Module) -> nn.Module:
    first, second = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 32, 3, padding=1)
    return nn.Sequential(first, norm, nn.ReLU(), second, nn.Conv2d(32, 2, 1))


def volumes() -> nn.Module:
    """Group norms of volumes, in groups of 4, 16 and 32 channels, the last up to the logits."""
    high = [nn.Conv3d(1, 32, 3, padding=1), group_norm(8, 32), nn.ReLU()]
    middle = [nn.Conv3d(32, 32, 3, padding=1), group_norm(2, 32), nn.ReLU()]
    last = [nn.Conv3d(32, 32, 3, padding=1), group_norm(1, 32), nn.ReLU()]
    return nn.Sequential(*high, *middle, *last, nn.Conv3d(32, 2, 1))


def made_of(net: nn.Module, dtype: torch.dtype = torch.float32, **scales: float) -> fx.GraphModule:
    return rewriting.lowered(rewriting.rewritten_from(lively(net), BATCH, dtype), scales=scales)


def factors(made: fx.GraphModule) -> list[int]:
    """How wide the groups are of each norm that is a factor and a shift; of an instance norm's 1."""
    nodes = made.graph.find_nodes(op="call_function", target=factor_and_shift)
    return [cast("int", node.args[-1]) for node in nodes]


class Conditioned(nn.Module):
    def __init__(self, computed: str) -> None:
        super().__init__()
        self.weight, self.bias = nn.Buffer(torch.linspace(0.5, 1.5, 32)), nn.Buffer(torch.linspace(-1, 1, 32))
        self.computed = computed

    def forward(self, x: Tensor) -> Tensor:
        added = x.mean((0, 2, 3))
        weight, bias = (
            (self.weight + added, self.bias) if self.computed == "weight" else (self.weight, self.bias + added)
        )
        return functional.group_norm(x, 8, weight, bias)


VOLUMES = torch.randn(2, 1, 8, 16, 16)
WIDTHS: dict[str, tuple[Callable[[], nn.Module], Tensor, list[int]]] = {
    "SegResNet": (PreActivated, BATCH, [4, 4, *[8] * 4, 4, 4]),
    "diffusers": (diffusing, BATCH, [4, 16, 4]),
    "volumes": (volumes, VOLUMES, [4, 16, 32]),
    "of three channels, by torch": (lambda: between(96, group_norm(32, 96)), BATCH, []),
    "of 96, by torch": (lambda: between(96, group_norm(1, 96)), BATCH, []),
    "of six, by torch": (lambda: between(96, group_norm(16, 96)), BATCH, []),
    "without ends": (lambda: between(32, nn.GroupNorm(8, 32, affine=False)), BATCH, [4]),
    "of ones and zeros": (lambda: between(32, nn.GroupNorm(8, 32, eps=0.1)), BATCH, [4]),
    "a computed weight": (lambda: between(32, Conditioned("weight")), BATCH, [4]),
    "a computed bias": (lambda: between(32, Conditioned("bias")), BATCH, [4]),
}


@pytest.mark.parametrize("name", WIDTHS)
@torch.no_grad()
def test_group_norms_become_factors_but_for_widths_that_no_kernel_has(name: str) -> None:
    make, batch, widths = WIDTHS[name]
    torch.manual_seed(0)
    net = lively(make())
    made = rewriting.lowered(rewriting.rewritten_from(net, batch))
    assert factors(made) == widths
    assert bool(made.graph.find_nodes(op="call_function", target=variance_and_mean)) == (not widths)
    assert rewriting.distance(made, batch, net(batch)) < 1e-3


@pytest.mark.parametrize(
    ("make", "ways"),
    [(PreActivated, {IN_A_PASS: 1, WHEN_READ: 7}), (diffusing, {IN_A_PASS: 3, WHEN_READ: 0})],
    ids=["SegResNet", "diffusers"],
)
@torch.no_grad()
def test_own_kernels_norm_groups(make: Callable[[], nn.Module], ways: dict[str, int], tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = lively(make())
    made = by_tile(made_of(net, torch.float16), NARROW)
    wanted = made(BATCH)
    assert put_own_norms(made, BATCH, tuner(tmp_path, WHEN_READ)) == ways
    assert rewriting.own_calls(made).count("normalised") == ways[IN_A_PASS]
    assert rewriting.own_calls(made).count("normed_conv3x3") == ways[WHEN_READ]
    assert rewriting.distance(made, BATCH, wanted) < 3e-3
    assert rewriting.distance(made, BATCH, net(BATCH)) < 1e-2
    save(made, BATCH, tmp_path / "net")
    assert torch.equal(load(tmp_path / "net")(BATCH), made(BATCH))


@torch.no_grad()
def test_a_layer_that_adds_what_the_norm_gives_leaves_the_pass(tmp_path: Path) -> None:
    torch.manual_seed(0)
    convs = [nn.Conv2d(inner, 32, 3, padding=1) for inner in (3, 32)]

    def added(batch: Tensor, first: nn.Module, second: nn.Module, norm: nn.Module, head: nn.Module) -> Tensor:
        value = norm(first(batch)).relu()
        return head(functional.relu(second(value) + value))

    net = lively(Made(added, *convs, group_norm(8, 32), nn.Conv2d(32, 2, 1)))
    made = by_tile(made_of(net, torch.float16), NARROW)
    assert put_own_norms(made, BATCH, tuner(tmp_path, WHEN_READ)) == {IN_A_PASS: 1, WHEN_READ: 0}
    assert rewriting.distance(made, BATCH, net(BATCH)) < 1e-2


@torch.no_grad()
def test_a_pass_into_fp8_is_ours_whatever_it_ends_in() -> None:
    torch.manual_seed(0)
    scales = {"silu": 0.02, "silu_1": 0.02}
    made = [found.scale for found in found_passes(made_of(diffusing(), torch.float16, **scales).graph)]
    assert made[2] is None  # the last stays in fp16
    assert made[:2] == pytest.approx([0.02, 0.02])
    relu = made_of(between(32, group_norm(8, 32)), torch.float16, relu=0.02)
    (found,) = found_passes(relu.graph)
    assert put_pass(found).kwargs["group_width"] == 4
    assert found.scale == pytest.approx(0.02)


NAME = "late windows, depthwise, squeeze and excitation"


def test_no_value_of_another_than_16_channels_is_stored_in_fp8() -> None:
    net = rewriting.rewritten(NAME).net
    assert {int(value.meta["val"].shape[1]) % 16 for group in fp8_groups(net, []) for value in group} <= {0}
    narrow = [layer for layer in rewriting.layers(net).values() if layer.bias is not None and len(layer.bias) == 24]
    assert narrow
    assert not any(reads_fp8(layer) for layer in narrow)
