"""An up-sampling becomes one layer with the convolution after it, wherever its channels lie among the others."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.driver import composed_flops
from pipeline.compiler.graph.exported_net import export
from pipeline.compiler.graph.layers import LibraryPhases, Upsampling
from pipeline.compiler.passes import FOR_ANY_BACKEND, FOR_THE_LIBRARY, rewrite
from tests.compiler.nets import image, lively
from tests.compiler.rewriting import called, distance, layers, lowered, own_calls, rewritten_from
from tests.kernels.test_polyphase_compose import SIZES, assert_exact, normal

ORDERS = {"first": (0, 1, 2), "between": (1, 0, 2), "last": (1, 2, 0)}


class Grown(nn.Module):
    """A convolution of an up-sampled map beside two others, in every order, and of the map alone."""

    def __init__(self, *, transposed: bool) -> None:
        super().__init__()
        self.low, self.one, self.other = (nn.Conv2d(3, outer, 3, padding=1) for outer in (32, 16, 48))
        self.grow = nn.ModuleDict({name: nn.ConvTranspose2d(32, 16, 2, 2) for name in [*ORDERS, "alone"]})
        self.transposed = transposed
        grown = 16 if transposed else 32
        self.joined = nn.ModuleDict({name: nn.Conv2d(grown + 64, 16, 3, padding=1) for name in ORDERS})
        self.alone = nn.Conv2d(grown, 16, 3, padding=1, bias=False)

    def up(self, name: str, low: Tensor) -> Tensor:
        grown: Tensor = self.grow[name](low) if self.transposed else functional.interpolate(low, scale_factor=2.0)
        return grown

    def forward(self, batch: Tensor) -> Tensor:
        low, one, other = self.low(functional.avg_pool2d(batch, 2)), self.one(batch), self.other(batch)
        answers = [self.alone(self.up("alone", low)).relu()]
        for name, order in ORDERS.items():
            parts = (self.up(name, low), one, other)
            answers.append(self.joined[name](torch.cat([parts[place] for place in order], dim=1)).sigmoid())
        return torch.cat(answers, dim=1)


@pytest.mark.parametrize("transposed", [True, False], ids=["transposed", "nearest"])
def test_an_upsampling_joins_the_convolution_after_it(transposed: bool) -> None:
    """At the border, too, where the composed window hangs over: sizes of a few pixels are nearly all border."""
    torch.manual_seed(0)
    net, batch = lively(Grown(transposed=transposed)), image(2, 3, 6, 10)
    rewritten = rewritten_from(net, batch)
    composed = [layer.name for layer in layers(rewritten).values() if layer.op.name == "upsampled_conv3x3"]
    assert composed == rewritten.matched["compose_upsampling"]
    assert composed == ["alone", *(f"joined.{name}" for name in ORDERS)]
    flops = composed_flops(rewritten)
    assert flops["alone"] == 2 * 16 * (3 * 5) * 32 * 16  # four phases of 2×2 taps for each pixel of the small map
    assert flops["joined.last"] == flops["alone"] + 2 * 9 * (6 * 10) * 64 * 16
    with torch.no_grad():
        wanted = net(batch)
        assert distance(rewritten.module, batch, wanted) < 1e-5
        assert distance(lowered(rewritten), batch, wanted) < 1e-3


@pytest.mark.parametrize("transposed", [True, False], ids=["transposed", "nearest"])
def test_where_no_kernel_runs_the_library_composes_all_the_same(transposed: bool) -> None:
    """Without an up-sampled map or a concatenation, and a layer of the project."""
    torch.manual_seed(0)
    net, batch = lively(Grown(transposed=transposed)), image(2, 3, 14, 20)
    made = export(net, batch, torch.float32)
    rewrite(made, FOR_ANY_BACKEND)
    rewrite(made, FOR_THE_LIBRARY)
    composed = [layer.name for layer in layers(made).values()]
    assert composed == made.matched["compose_by_library"] == ["alone", *(f"joined.{name}" for name in ORDERS)]
    graph = lowered(made, by_library=list(layers(made)))
    assert own_calls(graph) == []
    assert called(graph).count("LibraryLayer") == len(composed)
    assert not {"aten.conv_transpose2d.input", "aten.upsample_nearest2d.vec"} & set(called(graph))
    with torch.no_grad():
        wanted = net(batch)
        assert distance(made.module, batch, wanted) < 1e-5
        assert distance(graph, batch, wanted) < 1e-5


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("beside", [0, 3])
@pytest.mark.parametrize("kind", ["transposed", "transposed, no bias", "nearest"])
def test_the_library_s_phases_are_the_layers_in_float64(kind: str, beside: int, size: tuple[int, int]) -> None:
    """Inside and at each border on its own, with and without a skip, residual and activation included."""
    height, width = size
    inner, grown, outer = 6, 6 if kind == "nearest" else 4, 5
    small, skip = normal(3, inner, height, width), normal(3, beside, 2 * height, 2 * width)
    weight, bias, residual = normal(outer, beside + grown, 3, 3), normal(outer), normal(3, outer, 2 * height, 2 * width)
    up = Upsampling()
    large = functional.interpolate(small, scale_factor=2.0)
    if kind != "nearest":
        up = Upsampling(normal(inner, grown, 2, 2), normal(grown) if kind == "transposed" else None)
        assert up.weight is not None
        large = functional.conv_transpose2d(small, up.weight, up.bias, stride=2)
    layer = LibraryPhases("up", up, weight, bias, inner)
    wanted = functional.conv2d(torch.cat([skip, large], 1), weight, bias, padding=1) + residual
    inputs = [small, skip][: 2 if beside else 1]
    found = layer.sums_by_library(layer.parameters_in(torch.float64), inputs, residual)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert_exact(found, wanted)


@pytest.mark.parametrize(
    ("grown", "size", "pays"),
    [(64, (32, 32), True), (16, (32, 32), False), (64, (2, 2), False)],
    ids=["half as many", "an eighth as many", "two pixels"],
)
def test_the_library_composes_only_what_multiplies_less_then(grown: int, size: tuple[int, int], pays: bool) -> None:
    """Of 128 channels, made `grown` by the transposed convolution; a map of two pixels is nearly all border."""
    up = Upsampling(torch.zeros(128, grown, 2, 2))
    layer = LibraryPhases("up", up, torch.zeros(64, 32 + grown, 3, 3), torch.zeros(64), 128)
    assert layer.pays((1, 128, *size)) == pays
