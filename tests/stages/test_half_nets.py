"""What half precision leaves: operators without a half kernel, numbers beyond fp16, modules in fp32, complex ones."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.agreement import distance
from pipeline.compiler.graph.exported_net import Entry, export
from pipeline.compiler.half import Half, in_half, layers_within
from pipeline.stages import amp, torchscript
from pipeline.stages.api import Workload
from pipeline.stages.common.network_forms import half_net
from tests.input_nets import Between

LOWEST = -1e9
DRAWN = torch.Generator().manual_seed(0)
IMAGE, VOLUME = torch.rand(2, 8, 8, 8, generator=DRAWN), torch.rand(1, 8, 4, 4, 4, generator=DRAWN)


def stretched(value: Tensor) -> Tensor:
    return value / torch.quantile(value.flatten(1).abs(), torch.tensor(0.9), dim=1).view(-1, 1, 1, 1)


def whitened(value: Tensor) -> Tensor:
    spread = torch.einsum("bchw,bdhw->bcd", value, value) + 64 * torch.eye(8, dtype=value.dtype)
    return torch.einsum("bcd,bdhw->bchw", 64 * torch.linalg.inv(spread), value)


def smaller(value: Tensor) -> Tensor:
    return functional.interpolate(value, scale_factor=0.5, mode="bicubic", antialias=True)


def masked(value: Tensor) -> Tensor:
    return value.masked_fill(value < 0, LOWEST).softmax(-1)


def masked_in_place(value: Tensor) -> Tensor:
    return value.clone().masked_fill_(value < 0, -(10**9)).clamp(-4, 4)


def filled(value: Tensor) -> Tensor:
    later = torch.full(value.shape[-2:], LOWEST, dtype=value.dtype).triu()
    return (value + later).softmax(-1)


def assigned(value: Tensor) -> Tensor:
    value = value.clone()
    value[:, :4] = LOWEST  # whole rows, of which a softmax of infinities is NaN
    return value.softmax(-1)


def chosen(value: Tensor) -> Tensor:
    return torch.where(torch.arange(8).view(8, 1, 1) < 4, value, LOWEST).softmax(-1)


OPERATORS: dict[Callable[[Tensor], Tensor], str] = {
    stretched: "quantile in fp32",
    whitened: "linalg_inv in fp32",
    smaller: "interpolate in fp32",
}
NUMBERS: dict[Callable[[Tensor], Tensor], str] = {
    masked: "masked_fill within its range",
    masked_in_place: "masked_fill_ within its range",
    filled: "full within its range",
    assigned: "__setitem__ within its range",
    chosen: "where within its range",
}


def work(net: nn.Module, image: Tensor, folder: Path = Path()) -> Workload:
    return Workload(net.eval(), [image], torch.device("cpu"), folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("function", "said"), OPERATORS.items(), ids=lambda given: getattr(given, "__name__", ""))
@torch.no_grad()
def test_without_a_half_kernel_fp32_runs(function: Callable[[Tensor], Tensor], said: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = Between(function, 8)
    half = half_net(work(net, IMAGE), dtype)
    assert distance(half(IMAGE).float(), net(IMAGE)) < (5e-3 if dtype == torch.float16 else 4e-2)
    assert half.in_words.endswith(said)


@pytest.mark.parametrize("pool", [nn.AvgPool3d(2), nn.LPPool3d(2, 2)])
@torch.no_grad()
def test_so_do_pools_of_volumes(pool: nn.Module) -> None:
    net = Between(pool, 8, volumes=True)
    half = half_net(work(net, VOLUME), torch.bfloat16)
    assert distance(half(VOLUME).float(), net(VOLUME)) < 4e-2


@pytest.mark.parametrize(("function", "said"), NUMBERS.items(), ids=lambda given: getattr(given, "__name__", ""))
@torch.no_grad()
def test_a_number_beyond_fp16_is_the_largest_that_it_holds(function: Callable[[Tensor], Tensor], said: str) -> None:
    torch.manual_seed(0)
    net = Between(function, 8)
    half = half_net(work(net, IMAGE), torch.float16)
    assert distance(half(IMAGE).float(), net(IMAGE)) < 2e-2
    assert half.in_words.endswith(said)


@torch.no_grad()
def test_a_number_that_does_no_harm_stays() -> None:
    net = Between(lambda value: torch.where(torch.arange(8) < 4, value, LOWEST).softmax(-1), 8)
    assert not half_net(work(net, IMAGE), torch.float16).casts_own_values


@pytest.mark.parametrize("function", [smaller, masked, assigned])
@torch.no_grad()
def test_autocast_and_a_trace_run_them_so_too(function: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Between(function, 8)
    given, said = work(net, IMAGE, tmp_path), {**OPERATORS, **NUMBERS}[function]
    for stage in (amp, torchscript):
        runner = stage.build(given, dtype="fp16")
        assert distance(runner.run(IMAGE).float(), net(IMAGE)) < 2e-2
        assert said in runner.description


@pytest.mark.parametrize("function", [stretched, smaller, masked])
@torch.no_grad()
def test_so_do_an_exported_and_a_compiled_net(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    net = Between(function, 8)
    exported = export(work(net, IMAGE).model, IMAGE, torch.float16)
    assert distance(exported.module(IMAGE).float(), net(IMAGE)) < 5e-3
    compiled = torch.compile(half_net(work(net, IMAGE), torch.float16), backend="aot_eager", fullgraph=True)
    assert distance(compiled(IMAGE).float(), net(IMAGE)) < 5e-3


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
