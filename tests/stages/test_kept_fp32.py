"""Weights that stay as they are in a copy in half precision: modules in fp32, and complex numbers."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.agreement import distance
from pipeline.compiler.graph.exported_net import Entry
from pipeline.compiler.half import Half, in_half, layers_within
from pipeline.stages.api import Workload
from pipeline.stages.common.network_forms import half_net


class TwoNames(nn.Module):
    """A convolution whose answers fp16 doesn't hold, called within a Sequential, or by its own name."""

    def __init__(self, within: bool) -> None:
        super().__init__()
        self.conv, self.within = nn.Conv2d(3, 4, 1), within
        self.block, self.last = nn.Sequential(self.conv, nn.ReLU()), nn.Conv2d(4, 2, 1)
        nn.init.constant_(self.conv.weight, 1e5 / 3)
        nn.init.constant_(self.last.weight, 1e-3)

    def forward(self, image: Tensor) -> Tensor:
        return self.last(1e-2 * (self.block if self.within else self.conv)(image))


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("kept", ["conv", "block.0", "block"])
@torch.no_grad()
def test_a_module_is_kept_in_fp32_under_each_of_its_names(kept: str, within: bool) -> None:
    net, image = TwoNames(within).eval(), torch.ones(1, 3, 4, 4)
    half = Half(net, torch.float16, [kept])
    assert {part.dtype for part in half.net.get_submodule("block.0").parameters()} == {torch.float32}
    assert {part.dtype for part in half.net.get_submodule("last").parameters()} == {torch.float16}
    assert half.net.get_submodule("conv") is half.net.get_submodule("block.0")
    torch.testing.assert_close(half(image).float(), net(image), rtol=2e-3, atol=2e-3)
    assert not Half(net, torch.float16)(image).isfinite().all()


@torch.no_grad()
def test_a_weight_that_another_module_shares_is_in_half_there() -> None:
    one, other = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
    other.weight = one.weight
    given, image = one.weight.detach().clone(), torch.rand(1, 3, 4, 4)
    half = in_half(nn.Sequential(one, other).eval(), torch.bfloat16, ["0"])
    weights = half.state_dict()
    assert (weights["0.weight"].dtype, weights["1.weight"].dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(weights["0.weight"], given)
    assert half(image.bfloat16()).dtype == torch.bfloat16


class Blurred(TwoNames):
    """The same, and then a filter in fp32 that no module meets."""

    def forward(self, image: Tensor) -> Tensor:
        logits = super().forward(image)
        return functional.conv2d(logits, torch.ones(2, 1, 3, 3) / 9, groups=2)


@torch.no_grad()
def test_modules_are_kept_in_a_net_whose_functions_are_given_one_type(tmp_path: Path) -> None:
    net, image = Blurred(within=True).eval(), torch.ones(1, 3, 4, 4)
    half = half_net(Workload(net, [image], image.device, tmp_path), torch.float16, ["conv"])
    assert half.casts_own_values
    torch.testing.assert_close(half(image).float(), net(image), rtol=2e-3, atol=2e-3)


def test_the_layers_within_what_is_kept() -> None:
    assert layers_within(TwoNames(within=True), ["block"]) == ["conv"]
    assert layers_within(TwoNames(within=True), ["block.0", "last"]) == ["conv", "last"]


class Fourier(nn.Module):
    """A convolution, filters of its frequencies, and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 2, 1)
        self.filters = nn.Parameter(torch.randn(8, 8, 5, dtype=torch.complex64))
        self.turns, self.order = nn.Buffer(torch.polar(torch.ones(5), torch.arange(5.0))), nn.Buffer(torch.arange(8))

    def forward(self, batch: Tensor) -> Tensor:
        spectrum = torch.fft.rfft2(self.first(batch).float()) * self.filters * self.turns
        return self.last(torch.fft.irfft2(spectrum).to(batch.dtype)[:, self.order])


@pytest.mark.parametrize("copied", [Half, partial(Half, layout="NCHW"), Entry, partial(Half, kept=["last"])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@torch.no_grad()
def test_filters_stay_complex(copied: Callable[[nn.Module, torch.dtype], nn.Module], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net, batch = Fourier().eval(), torch.rand(2, 3, 8, 8)
    assert distance(copied(net, dtype)(batch).float(), net(batch)) < 3e-3
