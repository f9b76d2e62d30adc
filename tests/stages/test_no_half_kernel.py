"""Operators that torch has no half kernel of, and numbers beyond fp16: they alone run another way, in every stage."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.agreement import distance
from pipeline.compiler.graph.exported_net import export
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
