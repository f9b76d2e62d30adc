"""Where the time of a call went: layers by annotation and by the uncaptured call, and the host's own part."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from models.unet import UNet
from pipeline.profiling import profiler
from pipeline.profiling.layers import announced, layer_work, level, own_times, replayed_times
from pipeline.profiling.profiler import split
from pipeline.records.chrome_trace import TraceEvent
from pipeline.records.diagnostics import SKIP
from tests.profiling.traced import event, launched, layer


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return UNet(base=4, depth=2).eval()


def test_the_layers_flops_add_up_to_the_counted_total(net: nn.Module) -> None:
    image = torch.randn(1, 3, 32, 32)
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        net(image)
    layers = layer_work(net, image)
    assert sum(part.flops for part in layers) == counter.get_total_flops() > 0
    assert layers[0].name == "encoder.0.0"
    first = layers[0]
    assert (first.read_elements, first.written_elements, first.weight_elements) == (3 * 1024, 4 * 1024, 4 * 27)
    assert first.flops == 2 * 27 * 4 * 1024


def test_skip_connections_are_a_level_of_their_own(net: nn.Module) -> None:
    """What the concatenations read and write: at both levels as much from the encoder as from below."""
    (skip,) = [part for part in layer_work(net, torch.randn(1, 3, 32, 32)) if part.name == SKIP]
    assert (skip.level, skip.flops, skip.weight_elements) == (SKIP, 0, 0)
    assert skip.read_elements == skip.written_elements == 2 * 4 * 32**2 + 2 * 8 * 16**2


@pytest.mark.parametrize("join", [torch.cat, torch.concat, torch.concatenate])
def test_a_concatenation_by_any_name_is_one(join: Any) -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.ReLU()

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return join([image, self.layer(image)], dim=1)

    (skip,) = [part for part in layer_work(Joined(), torch.randn(1, 3, 4, 4)) if part.name == SKIP]
    assert (skip.read_elements, skip.written_elements) == (96, 96)


def test_a_concatenation_within_a_layer_is_that_layers() -> None:
    class Doubled(nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return torch.cat([image, image])

    work = layer_work(nn.Sequential(Doubled()), torch.randn(1, 3, 4, 4))
    assert [(part.kind, part.written_elements) for part in work] == [("Doubled", 96), ("between layers", 0)]


def test_a_layer_that_runs_twice_has_twice_the_work() -> None:
    shared = nn.Conv2d(3, 3, 1, bias=False)
    once, twice = nn.Sequential(shared), nn.Sequential(shared, nn.ReLU(), shared)
    image = torch.randn(1, 3, 8, 8)
    work = [next(part for part in layer_work(net, image) if part.kind == "Conv2d") for net in (once, twice)]
    assert work[1].flops == 2 * work[0].flops > 0
    assert work[1].weight_elements == work[0].weight_elements


def test_levels_are_named_after_the_nets_parts() -> None:
    assert [level(name) for name in ("encoder.0.3", "bottleneck.0", "head", "upsample.1")] == [
        "encoder 0", "bottleneck", "head", "upsample",
    ]  # fmt: skip


def test_a_profiled_net_gives_each_of_its_layers_time(net: nn.Module, tmp_path: Path) -> None:
    batch = torch.randn(1, 3, 32, 32)
    with announced(net):
        events, _ = profiler.record(net, [batch], 2, tmp_path)
    times = {part.name: part.seconds_per_call for part in own_times(events, 2)}
    assert {part.name for part in layer_work(net, batch)} - {""} <= times.keys()
    assert SKIP in times
    assert all(seconds > 0 for seconds in times.values())
    assert not any(part._forward_hooks for part in net.modules())


def eager() -> list[TraceEvent]:
    """Two layers, launched one by one; a kernel of the second follows on no layer."""
    return [
        layer("a", 0, 10), *launched(1, "conv", 1, 20, 30),
        layer("b", 10, 10), *launched(2, "relu", 11, 50, 5),
        *launched(3, "pad", 25, 55, 4), *launched(4, "CatArrayBatched", 27, 60, 2),
    ]  # fmt: skip


def test_a_kernel_belongs_to_the_layer_that_launched_it() -> None:
    times = {part.name: part.seconds_per_call for part in own_times(eager(), 1)}
    assert times == pytest.approx({"a": 30e-6, "b": 5e-6, "": 4e-6, SKIP: 2e-6})


def replayed(*names: str) -> list[TraceEvent]:
    return [launched(9, name, 0, 10 * at, 6)[1] for at, name in enumerate(names)]


def test_replayed_kernels_have_the_layers_of_the_uncaptured_call() -> None:
    found = replayed_times(replayed(*["conv", "relu", "pad", "CatArrayBatched"] * 2), eager(), 2)
    times = {part.name: part.seconds_per_call for part in found}
    assert times == pytest.approx({"a": 6e-6, "b": 6e-6, "": 6e-6, SKIP: 6e-6})


@pytest.mark.parametrize(
    "names", [["conv", "relu"], ["conv", "pad", "relu", "CatArrayBatched"], ["conv", "relu", "pad", "other"]]
)
def test_other_kernels_than_the_uncaptured_call_s_have_no_layer(names: list[str]) -> None:
    assert replayed_times(replayed(*names), eager(), 1) is None


def test_layers_with_channels_say_them() -> None:
    """Convolutions, transposed and grouped ones too, and linear layers; anything else has none."""
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 1, groups=4), nn.ConvTranspose2d(24, 6, 2, 2),
        nn.Flatten(2), nn.Linear(64, 10),
    )  # fmt: skip
    work = layer_work(net.eval(), torch.randn(1, 3, 4, 4))
    assert [(part.in_channels, part.out_channels, part.groups) for part in work] == [
        (3, 12, 1), (0, 0, 1), (12, 24, 4), (24, 6, 1), (0, 0, 1), (64, 10, 1), (0, 0, 1),
    ]  # fmt: skip


def test_the_hosts_time_is_split_by_what_it_is_inside_of() -> None:
    events = [
        event("user_annotation", "call", 0, 20),
        event("cpu_op", "aten::conv2d", 2, 10),
        *launched(1, "conv", 4, 16, 30),
        *launched(2, "triton", 15, 46, 10),
        event("cuda_runtime", "cudaDeviceSynchronize", 20, 36),
    ]
    found = split(events, 1)
    assert found.wall_seconds == pytest.approx(56e-6)
    assert found.device_seconds == pytest.approx(40e-6)
    assert found.launch_seconds == pytest.approx(4e-6)
    assert found.framework_seconds == pytest.approx(8e-6)
    assert found.interpreter_seconds == pytest.approx(8e-6)
    assert found.waiting_seconds == pytest.approx(36e-6)


def test_without_annotated_calls_nothing_is_claimed() -> None:
    assert split(launched(1, "conv", 0, 5, 5), 1) is None


def test_a_cpus_split_has_no_device() -> None:
    found = split([event("user_annotation", "call", 0, 10), event("cpu_op", "aten::relu", 1, 6)], 1)
    assert found.device_seconds is None
    assert found.framework_seconds == pytest.approx(6e-6)
