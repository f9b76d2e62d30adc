"""Half precision: nets that make fp32 values, operators and numbers that halves lack, and modules that stay in fp32."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
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
from pipeline.compiler.graph.exported_net import CASTS, Entry, export
from pipeline.compiler.half import CAST_OWN_VALUES, Half, in_half, layers_within
from pipeline.stages import amp, cuda_graph, half, torchscript
from pipeline.stages import compile as compile_stage
from pipeline.stages.api import Workload
from pipeline.stages.common.network_forms import half_net
from tests.compiler.nets_that_passes_leave import Made, conv
from tests.input_nets import Between

IMAGE = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def with_places(image: Tensor, body: nn.Module, head: nn.Module) -> Tensor:
    lines = [torch.linspace(-1, 1, length, device=image.device) for length in image.shape[-2:]]
    places = torch.stack(torch.meshgrid(*lines, indexing="ij")).expand(len(image), -1, -1, -1)
    return head(body(torch.cat([image, places], 1)).relu())


def with_time(image: Tensor, time: nn.Module, body: nn.Module, head: nn.Module) -> Tensor:
    angles = torch.arange(2, device=image.device)[:, None] * torch.logspace(0, -4, 4, device=image.device)
    shift = time(torch.cat([angles.sin(), angles.cos()], 1))
    return head(functional.silu(body(image) + shift[:, :, None, None]))


def places_at_last(image: Tensor, body: nn.Module, head: nn.Module) -> Tensor:
    """A grid before the last convolution, which has no bias: torch.export alone wouldn't see that types differ."""
    places = torch.linspace(-1, 1, image.shape[-1], device=image.device).expand(len(image), 1, *image.shape[-2:])
    return head(torch.cat([body(image), places], 1))


def filtered(value: Tensor) -> Tensor:
    """A blur before the image is made smaller, by a filter that is no weight."""
    blur = torch.full((8, 1, 3, 3), 1 / 9, device=value.device)
    return functional.conv2d(value.relu(), blur, padding=1, groups=8)


def warped(value: Tensor) -> Tensor:
    """A map that is looked at from elsewhere, as in registration."""
    turn = torch.tensor([[0.8, 0.6, 0], [-0.6, 0.8, 0]], device=value.device).expand(len(value), 2, 3)
    grid = functional.affine_grid(turn, [*value.shape], align_corners=False)
    return functional.grid_sample(value, grid, align_corners=False)


def with_states(image: Tensor, rows: nn.Module) -> Tensor:
    """fp32 states of a recurrent layer, which are a tuple."""
    start = torch.zeros(1, len(image), 2, device=image.device)
    answers: Tensor = rows(image.flatten(2).permute(2, 0, 1)[:16], (start, start))[0]
    return answers.permute(1, 2, 0).reshape(len(image), 2, 4, 4)


class Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((1,), 2.0))

    def forward(self, value: Tensor) -> Tensor:
        return self.gain * value


def in_fp32_on_purpose() -> nn.Module:
    """Values beyond fp16 for a while, which the weights there allow."""
    net = nn.Conv2d(3, 2, 1), Gain()
    return Made(lambda image, head, gain: (gain(head(image).float() * 60000) / 60000).to(image.dtype), *net)


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


# Nets that make values of their own, most of them between a convolution and a head.
NETS: dict[str, Callable[[], nn.Module]] = {
    "places": lambda: Made(with_places, conv(5, 8), conv(8, 2, 1)),
    "a softmax": lambda: Between(lambda value: value.float().softmax(1)),
    "time": lambda: Made(with_time, nn.Linear(8, 8), conv(3, 8), conv(8, 3, 1)),
    "places at last": lambda: Made(places_at_last, conv(3, 8), conv(9, 2, 1, bias=False)),
    "a filter": lambda: Between(filtered),
    "a warp": lambda: Between(warped),
}
OF_HALVES = {**NETS, "states": lambda: Made(with_states, nn.LSTM(3, 2))}


def work(net: nn.Module) -> Workload:
    return Workload(net, [IMAGE], torch.device("cpu"), Path())


@pytest.mark.parametrize("make", OF_HALVES.values(), ids=OF_HALVES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_a_half_net_casts_what_the_net_makes_itself(make: Callable[[], nn.Module], dtype: torch.dtype) -> None:
    net = make().eval()
    half = half_net(work(net), dtype)
    assert distance(half(IMAGE).float(), net(IMAGE)) < (5e-3 if dtype == torch.float16 else 4e-2)
    assert half.casts_own_values
    assert half.in_words.endswith(CAST_OWN_VALUES)


@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
@torch.no_grad()
def test_so_does_an_exported_net(make: Callable[[], nn.Module]) -> None:
    net = make().eval()
    exported = export(net, IMAGE, torch.float16)
    assert exported.matched == {CASTS: ["net"]}
    assert distance(exported.module(IMAGE), net(IMAGE)) < 5e-3


@torch.no_grad()
def test_a_net_that_runs_without_has_no_casts() -> None:
    net = in_fp32_on_purpose().eval()
    half = half_net(work(net), torch.float16)
    assert not half.casts_own_values
    assert not any(part._forward_pre_hooks for part in half.modules())
    assert distance(half(IMAGE).float(), net(IMAGE)) < 5e-3
    exported = export(net, IMAGE, torch.float16)
    assert exported.matched == {}
    assert distance(exported.module(IMAGE), net(IMAGE)) < 5e-3


@torch.no_grad()
def test_only_torchs_layers_cast_where_that_suffices() -> None:
    """Of values beyond fp16 in a module of the net's own, and then an fp32 value that a convolution doesn't take."""
    parts = in_fp32_on_purpose(), conv(2, 2, 1)
    net = Made(lambda image, purpose, last: last(purpose(image).float().softmax(1)), *parts).eval()
    half = half_net(work(net), torch.float16)
    assert half.casts_own_values
    assert distance(half(IMAGE).float(), net(IMAGE)) < 5e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_trial_calls_leave_nothing(dtype: torch.dtype) -> None:
    net = Kept().eval()
    before = torch.get_rng_state()
    half = half_net(work(net), dtype)
    assert torch.equal(torch.get_rng_state(), before)
    assert int(half.net.calls) == 0 == int(net.calls)  # type: ignore[arg-type]
    assert not len(half.net.grid)  # type: ignore[arg-type]
    with torch.no_grad():
        assert half(IMAGE).isfinite().all()


def test_memory_that_runs_out_asks_for_no_casts() -> None:
    def full(image: Tensor, head: nn.Module) -> Tensor:
        if not head._forward_pre_hooks:
            raise torch.OutOfMemoryError("no memory")
        return head(image)

    assert not half_net(work(Made(full, conv(3, 2, 1)).eval()), torch.float16).casts_own_values


def test_a_failed_export_leaves_no_hook() -> None:
    looks = Between(lambda value: value * 2 if float(value.sum()) > 0 else value)
    known = dict(_global_buffer_registration_hooks)
    with pytest.raises(UnsupportedError):
        export(looks, IMAGE, torch.float16)
    assert dict(_global_buffer_registration_hooks) == known


def test_a_net_that_sets_data_is_no_graph() -> None:
    def tripled(image: Tensor) -> Tensor:
        image.data = image.data * 3
        return image

    with pytest.raises(UnsupportedError, match="the network's own code sets a tensor's data, which no graph holds"):
        export(Made(tripled), IMAGE, torch.float16)


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
    for net, casts in ((NETS["places"]().eval(), True), (workload.model, False)):
        device = torch.device("cuda") if stage is cuda_graph else workload.device
        work = replace(workload, model=net, device=device)
        assert stage.build(work, dtype="bf16").execution.casts_own_values is casts


LOWEST = -1e9
DRAWN = torch.Generator().manual_seed(0)
MAP, VOLUME = torch.rand(2, 8, 8, 8, generator=DRAWN), torch.rand(1, 8, 4, 4, 4, generator=DRAWN)


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


def work_on(net: nn.Module, image: Tensor, folder: Path = Path()) -> Workload:
    return Workload(net.eval(), [image], torch.device("cpu"), folder)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("function", "said"), OPERATORS.items(), ids=lambda given: getattr(given, "__name__", ""))
@torch.no_grad()
def test_without_a_half_kernel_fp32_runs(function: Callable[[Tensor], Tensor], said: str, dtype: torch.dtype) -> None:
    net = Between(function, 8)
    half = half_net(work_on(net, MAP), dtype)
    assert distance(half(MAP).float(), net(MAP)) < (5e-3 if dtype == torch.float16 else 4e-2)
    assert half.in_words.endswith(said)


@pytest.mark.parametrize("pool", [nn.AvgPool3d(2), nn.LPPool3d(2, 2)])
@torch.no_grad()
def test_so_do_pools_of_volumes(pool: nn.Module) -> None:
    net = Between(pool, 8, volumes=True)
    half = half_net(work_on(net, VOLUME), torch.bfloat16)
    assert distance(half(VOLUME).float(), net(VOLUME)) < 4e-2


@pytest.mark.parametrize(("function", "said"), NUMBERS.items(), ids=lambda given: getattr(given, "__name__", ""))
@torch.no_grad()
def test_a_number_beyond_fp16_is_the_largest_that_it_holds(function: Callable[[Tensor], Tensor], said: str) -> None:
    net = Between(function, 8)
    half = half_net(work_on(net, MAP), torch.float16)
    assert distance(half(MAP).float(), net(MAP)) < 2e-2
    assert half.in_words.endswith(said)


@torch.no_grad()
def test_a_number_that_does_no_harm_stays() -> None:
    net = Between(lambda value: torch.where(torch.arange(8) < 4, value, LOWEST).softmax(-1), 8)
    assert not half_net(work_on(net, MAP), torch.float16).casts_own_values


@pytest.mark.parametrize("function", [smaller, masked, assigned])
@torch.no_grad()
def test_autocast_and_a_trace_run_them_so_too(function: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    net = Between(function, 8)
    given, said = work_on(net, MAP, tmp_path), {**OPERATORS, **NUMBERS}[function]
    for stage in (amp, torchscript):
        runner = stage.build(given, dtype="fp16")
        assert distance(runner.run(MAP).float(), net(MAP)) < 2e-2
        assert said in runner.description


@pytest.mark.parametrize("function", [stretched, smaller, masked])
@torch.no_grad()
def test_so_do_an_exported_and_a_compiled_net(function: Callable[[Tensor], Tensor]) -> None:
    net = Between(function, 8)
    exported = export(work_on(net, MAP).model, MAP, torch.float16)
    assert distance(exported.module(MAP).float(), net(MAP)) < 5e-3
    compiled = torch.compile(half_net(work_on(net, MAP), torch.float16), backend="aot_eager", fullgraph=True)
    assert distance(compiled(MAP).float(), net(MAP)) < 5e-3


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
    net, batch = Fourier().eval(), torch.rand(2, 3, 8, 8)
    assert distance(copied(net, dtype)(batch).float(), net(batch)) < 3e-3
