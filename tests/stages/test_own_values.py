"""Nets that make fp32 values in their forward, which torch's layers don't take beside weights in half precision."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import _global_buffer_registration_hooks

from pipeline.compiler.agreement import distance
from pipeline.compiler.batch import Batch
from pipeline.compiler.errors import UnsupportedError
from pipeline.compiler.graph.exported_net import CASTS, export
from pipeline.compiler.half import CAST_OWN_VALUES
from pipeline.stages import compile as compile_stage
from pipeline.stages import cuda_graph, half
from pipeline.stages.api import Workload
from pipeline.stages.common.network_forms import half_net
from tests import input_nets
from tests.compiler.nets_that_passes_leave import Made

IMAGE = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Between(nn.Module):
    """A convolution and a head, between which a net makes values of its own."""

    def __init__(self, takes: int = 3, head: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(takes, 8, 3, padding=1), head or nn.Conv2d(8, 2, 1)


class WithPlaces(Between):
    def __init__(self) -> None:
        super().__init__(takes=5)

    def forward(self, image: Tensor) -> Tensor:
        lines = [torch.linspace(-1, 1, length, device=image.device) for length in image.shape[-2:]]
        places = torch.stack(torch.meshgrid(*lines, indexing="ij")).expand(len(image), -1, -1, -1)
        return self.head(self.body(torch.cat([image, places], 1)).relu())


class WithSoftmax(Between):
    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.body(image).float().softmax(1))


class WithTime(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time, self.body, self.head = nn.Linear(8, 8), nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 1)

    def forward(self, image: Tensor) -> Tensor:
        angles = torch.arange(2, device=image.device)[:, None] * torch.logspace(0, -4, 4, device=image.device)
        shift = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        return self.head(functional.silu(self.body(image) + shift[:, :, None, None]))


class PlacesAtLast(Between):
    """A grid before the last convolution, which has no bias: torch.export alone wouldn't see that types differ."""

    def __init__(self) -> None:
        super().__init__(head=nn.Conv2d(9, 2, 1, bias=False))

    def forward(self, image: Tensor) -> Tensor:
        places = torch.linspace(-1, 1, image.shape[-1], device=image.device).expand(len(image), 1, *image.shape[-2:])
        return self.head(torch.cat([self.body(image), places], 1))


class WithFilter(Between):
    """A blur before the image is made smaller, by a filter that is no weight."""

    def forward(self, image: Tensor) -> Tensor:
        value, blur = self.body(image).relu(), torch.full((8, 1, 3, 3), 1 / 9, device=image.device)
        return self.head(functional.conv2d(value, blur, padding=1, groups=8))


class WithWarp(Between):
    """A map that is looked at from elsewhere, as in registration."""

    def forward(self, image: Tensor) -> Tensor:
        turn = torch.tensor([[0.8, 0.6, 0], [-0.6, 0.8, 0]], device=image.device).expand(len(image), 2, 3)
        grid = functional.affine_grid(turn, [*image.shape], align_corners=False)
        return self.head(functional.grid_sample(self.body(image), grid, align_corners=False))


class WithStates(nn.Module):
    """fp32 states of a recurrent layer, which are a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.LSTM(3, 2)

    def forward(self, image: Tensor) -> Tensor:
        start = torch.zeros(1, len(image), 2, device=image.device)
        answers: Tensor = self.rows(image.flatten(2).permute(2, 0, 1)[:16], (start, start))[0]
        return answers.permute(1, 2, 0).reshape(len(image), 2, 4, 4)


class Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((1,), 2.0))

    def forward(self, value: Tensor) -> Tensor:
        return self.gain * value


class InFp32OnPurpose(nn.Module):
    """Values beyond fp16 for a while, which the weights there allow."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.gain = nn.Conv2d(3, 2, 1), Gain()

    def forward(self, image: Tensor) -> Tensor:
        large: Tensor = self.gain(self.head(image).float() * 60000)
        return (large / 60000).to(image.dtype)


class Kept(nn.Module):
    """A net that makes its grid once, and changes it at each call; a counter, and noise."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head, self.grid = nn.Conv2d(3, 2, 1), torch.empty(0)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, image: Tensor) -> Tensor:
        if not len(self.grid):
            self.grid = torch.ones(image.shape[-2:], dtype=image.dtype)
        self.calls.add_(1)
        return self.head(image) + self.grid.mul_(1) + 0 * torch.randn(1, dtype=image.dtype)


class FirstOnPurpose(nn.Module):
    """Values beyond fp16 in a module of the net's own, and then an fp32 value that a convolution doesn't take."""

    def __init__(self) -> None:
        super().__init__()
        self.purpose, self.last = InFp32OnPurpose(), nn.Conv2d(2, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        return self.last(self.purpose(image).float().softmax(1))


NETS: list[Callable[[], nn.Module]] = [WithPlaces, WithSoftmax, WithTime, PlacesAtLast, WithFilter, WithWarp]


def work(net: nn.Module) -> Workload:
    return Workload(net, [IMAGE], torch.device("cpu"), Path())


@pytest.mark.parametrize("make", [*NETS, WithStates])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_a_half_net_casts_what_the_net_makes_itself(make: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = make().eval()
    half = half_net(work(net), dtype)
    assert distance(half(IMAGE).float(), net(IMAGE)) < (5e-3 if dtype == torch.float16 else 4e-2)
    assert half.casts_own_values
    assert half.in_words.endswith(CAST_OWN_VALUES)


@pytest.mark.parametrize("make", NETS)
@torch.no_grad()
def test_so_does_an_exported_net(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    net = make().eval()
    exported = export(net, IMAGE, torch.float16)
    assert exported.matched == {CASTS: ["net"]}
    assert distance(exported.module(IMAGE), net(IMAGE)) < 5e-3


@torch.no_grad()
def test_a_net_that_runs_without_has_no_casts() -> None:
    net = InFp32OnPurpose().eval()
    half = half_net(work(net), torch.float16)
    assert not half.casts_own_values
    assert not any(part._forward_pre_hooks for part in half.modules())
    assert distance(half(IMAGE).float(), net(IMAGE)) < 5e-3
    exported = export(net, IMAGE, torch.float16)
    assert exported.matched == {}
    assert distance(exported.module(IMAGE), net(IMAGE)) < 5e-3


@torch.no_grad()
def test_only_torchs_layers_cast_where_that_suffices() -> None:
    torch.manual_seed(0)
    net = FirstOnPurpose().eval()
    half = half_net(work(net), torch.float16)
    assert half.casts_own_values
    assert distance(half(IMAGE).float(), net(IMAGE)) < 5e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_trial_calls_leave_nothing(dtype: torch.dtype) -> None:
    net = Kept().eval()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    half = half_net(work(net), dtype)
    assert torch.equal(torch.get_rng_state(), before)
    assert int(half.net.calls) == 0 == int(net.calls)  # type: ignore[arg-type]
    assert not len(half.net.grid)  # type: ignore[arg-type]
    with torch.no_grad():
        assert half(IMAGE).isfinite().all()


def test_memory_that_runs_out_asks_for_no_casts() -> None:
    class Full(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Conv2d(3, 2, 1)

        def forward(self, image: Tensor) -> Tensor:
            if not any(part._forward_pre_hooks for part in self.modules()):
                raise torch.OutOfMemoryError("no memory")
            return self.head(image)

    assert not half_net(work(Full().eval()), torch.float16).casts_own_values


def test_a_failed_export_leaves_no_hook() -> None:
    looks = input_nets.Between(lambda value: value * 2 if float(value.sum()) > 0 else value)
    known = dict(_global_buffer_registration_hooks)
    with pytest.raises(UnsupportedError):
        export(looks, IMAGE, torch.float16)
    assert dict(_global_buffer_registration_hooks) == known


def test_a_net_that_sets_data_is_no_graph() -> None:
    class Sets(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            image.data = image.data * 3
            return image

    with pytest.raises(UnsupportedError, match="the network's own code sets a tensor's data, which no graph holds"):
        export(Sets(), IMAGE, torch.float16)


def test_what_no_cast_mends_fails_as_it_would() -> None:
    def wants_fp32(image: Tensor, head: nn.Module) -> Tensor:
        if image.dtype != torch.float32:
            raise ValueError("this net wants fp32")
        return head(image)

    fails = Made(wants_fp32, nn.Conv2d(3, 2, 1)).eval()
    half = half_net(work(fails), torch.float16)
    assert not half.casts_own_values
    assert not any(part._forward_pre_hooks for part in half.modules())
    with pytest.raises(ValueError, match=r"^this net wants fp32$"):
        half(IMAGE)
    with pytest.raises(UnsupportedError, match="this net wants fp32"):
        export(fails, Batch((IMAGE,), ("image",)), torch.float16)


@pytest.mark.parametrize("stage", [half, compile_stage, cuda_graph])
def test_a_half_net_tells_of_its_casts(stage: ModuleType, workload: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = SimpleNamespace()
    monkeypatch.setattr(compile_stage, "compile_net", lambda model, *_: model)
    monkeypatch.setattr(compile_stage, "check_possible", lambda _: None)
    monkeypatch.setattr(cuda_graph, "Captured", lambda *_: graph)
    for net, casts in ((WithPlaces().eval(), True), (workload.model, False)):
        device = torch.device("cuda") if stage is cuda_graph else workload.device
        work = replace(workload, model=net, device=device)
        assert stage.build(work, dtype="bf16").execution.casts_own_values is casts
