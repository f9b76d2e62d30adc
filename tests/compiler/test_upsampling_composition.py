"""An up-sampling becomes one layer with the convolution after it, wherever its channels lie among the others."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.driver import composed_flops
from tests.compiler.nets import image, lively
from tests.compiler.rewriting import distance, layers, lowered, rewritten_from

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
