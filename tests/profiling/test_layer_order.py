"""Whose a kernel is by the order of layers, and which kernels and copies change the layout."""

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from models.unet import UNet
from pipeline.profiling import profiler
from pipeline.profiling.layers import (
    ComputeLayer,
    OrderError,
    announced,
    compute_layers,
    layer_work,
    level,
    own_times,
    placed,
    replayed_times,
    times,
)
from pipeline.profiling.layout_changes import onnx_changes, order, trace_changes
from pipeline.profiling.profiler import split
from pipeline.records.chrome_trace import TraceEvent
from pipeline.records.diagnostics import SKIP
from tests.compiler.nets_that_passes_leave import Made
from tests.profiling.traced import NCDHW, NCHW, NDHWC, NHWC, copy, event, launched, layer

CONV, UP = "sm90_xmma_fprop_nhwc", "sm90_xmma_dgrad_nhwc"
ORDER = [
    ComputeLayer("a", True, pools=["pool"]),
    ComputeLayer("b", True),
    ComputeLayer("up", True, transposed=True),
    ComputeLayer("head", True),
]
CALL = [
    "Memcpy DtoD", CONV, "triton_poi_fused_relu", "max_pool_forward_nhwc", CONV, "add_bias_elementwise", UP,
    "CatArrayBatchedCopy_contig", CONV, "op_generic_tensor_kernel", "onnxruntime::Transpose3DKernel",
]  # fmt: skip


def replayed(names: list[str]) -> list[TraceEvent]:
    return [launched(9, name, 0, 10 * at, 6)[1] for at, name in enumerate(names)]


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return UNet(base=4, depth=2).eval()


def test_a_unet_has_one_order_and_it_is_that_of_its_layers(net: nn.Module) -> None:
    image = torch.randn(1, 3, 32, 32)
    found = compute_layers(net, image)
    assert [part.layer for part in found] == [part.name for part in layer_work(net, image) if part.flops]
    assert all(part.certain for part in found)
    assert [part.transposed for part in found] == ["upsample" in part.layer for part in found]
    assert [part.layer for part in found if part.pools] == ["encoder.0.3", "encoder.1.3"]


class Shortcut(nn.Module):
    """A block with a projection beside it: the projection may run before or after either convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.first, self.second, self.beside = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        start = self.stem(image)
        return self.head(self.second(self.first(start)) + self.beside(start))


def test_what_could_run_in_another_order_is_not_certain() -> None:
    found = {part.layer: part.certain for part in compute_layers(Shortcut().eval(), torch.randn(1, 3, 8, 8))}
    assert found == {"stem": True, "first": False, "second": False, "beside": False, "head": True}


def test_a_kernel_is_that_of_the_matrix_layer_before_it() -> None:
    found = placed(replayed(CALL * 2), 2, ORDER)
    owners = ["", "a", "a", "pool", "b", "b", "up", SKIP, "head", "head", ""]
    assert [part.owner for part in found] == owners * 2
    assert (found[0].spot, found[3].spot, found[-1].spot) == ("before a", "between a and b", "after head")
    seconds = {part.name: part.seconds_per_call for part in times(found, 2)}
    assert seconds == pytest.approx(
        {"": 12e-6, SKIP: 6e-6, "a": 12e-6, "pool": 6e-6, "b": 12e-6, "up": 6e-6, "head": 12e-6}
    )


def test_a_place_is_told_by_layers_that_have_one() -> None:
    order = [ORDER[0], ComputeLayer("b", False), *ORDER[2:]]
    found = placed(replayed(CALL), 1, order)
    assert "b" not in {part.owner for part in found}
    assert len(found) == len(CALL)
    spots = [found[at].spot for at in (0, 3, 4, -1)]
    assert spots == ["before a", "between a and up", "between a and up", "after head"]
    loose = [ComputeLayer(part.layer, False, part.transposed) for part in ORDER]
    assert {part.spot for part in placed(replayed(CALL), 1, loose)} == {""}
    events = replayed(CALL)
    places = {part.event.index: part.spot for part in placed(events, 1, ORDER)}
    (change,) = trace_changes(events, 1, places)
    assert (change.name, change.where) == (CALL[-1], "after head")
    two_pools = [ComputeLayer("a", True, pools=["pool", "other"]), *ORDER[1:]]
    assert placed(events, 1, two_pools)[3].owner == ""


@pytest.mark.parametrize(
    ("names", "calls", "words"),
    [
        ([*CALL, CONV], 1, "5 matrix kernels a call for 4 layers"),
        ([*CALL, CONV], 5, "no call is like another"),
        ([*CALL, *CALL[:-2], CALL[-1], CALL[-2]], 2, "no call has the same kernels"),
        ([CONV, UP, CONV, CONV], 1, "can't be for b"),
        ([CONV, CONV, CONV, CONV], 1, "can't be for up"),
        ([], 1, "0 kernels"),
    ],
)
def test_what_doesnt_fit_is_refused(names: list[str], calls: int, words: str) -> None:
    with pytest.raises(OrderError, match=words):
        placed(replayed(names), calls, ORDER)


def test_copies_that_turn_images_and_volumes_and_a_library_s_kernels_are_found() -> None:
    events = [layer("upsample.1", 0, 20), copy(2, 10, NHWC, NCHW), *launched(1, "nchwToNhwcKernel", 4, 30, 7)]
    (found,) = trace_changes(events, 1)
    assert (found.name, found.where, found.times_per_call) == ("copy, NCHW → NHWC", "upsample.1", 1)
    assert found.seconds_per_call == pytest.approx(7e-6)
    events = [layer("head", 0, 20), *launched(1, "cudnn::ops::nchwToNhwcKernel", 4, 30, 6)]
    (found,) = trace_changes(events * 2, 2)
    assert (found.where, found.source, found.times_per_call) == ("head", "trace", 1)
    assert found.seconds_per_call == pytest.approx(6e-6)
    events = [copy(2, 10, NDHWC, NCDHW), *launched(1, "elementwise_kernel", 4, 30, 7), copy(40, 10, NCDHW, NDHWC)]
    there, back = trace_changes(events, 1)
    assert (there.name, there.where, there.times_per_call) == ("copy, NCDHW → NDHWC", "between layers", 1)
    assert there.seconds_per_call == pytest.approx(7e-6)
    assert back.name == "copy, NDHWC → NCDHW"
    kept = [copy(2, 10, NDHWC, NDHWC), copy(2, 10, NHWC, NHWC), *launched(1, "direct_copy", 4, 30, 7)]
    assert trace_changes(kept, 1) == []


def test_on_a_cpu_the_operator_is_what_it_costs() -> None:
    (found,) = trace_changes([copy(2, 10, NCHW, NHWC)], 1)
    assert found.seconds_per_call == pytest.approx(10e-6)
    assert found.where == "between layers"


@pytest.mark.parametrize(
    ("shape", "strides"),
    [([2, 1, 4, 4], [16, 1, 4, 1]), ([2, 8, 1, 1], [8, 1, 1, 1]), ([2, 8, 1, 1, 1], [8, 1, 1, 1, 1]), ([8, 4], [4, 1])],
)
def test_what_is_both_or_no_image_has_no_order(shape: list[int], strides: list[int]) -> None:
    assert order(shape, strides) is None


def test_transposes_of_an_exported_graph_are_listed(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["y"], name="to_nhwc", perm=[0, 2, 3, 1]),
        helper.make_node("Transpose", ["y"], ["z"], name="turned", perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["u"], ["v"], name="to_ndhwc", perm=[0, 2, 3, 4, 1]),
        helper.make_node("Transpose", ["v"], ["w"], name="back", perm=[0, 4, 1, 2, 3]),
    ]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 4, 4])
    graph = helper.make_graph(nodes, "g", [image], [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)])
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    found = onnx_changes(tmp_path / "model.onnx")
    assert [(each.name, each.where, each.seconds_per_call) for each in found] == [
        ("Transpose, NCHW → NHWC", "to_nhwc", None),
        ("Transpose, NCDHW → NDHWC", "to_ndhwc", None),
        ("Transpose, NDHWC → NCDHW", "back", None),
    ]


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
    (skip,) = [part for part in layer_work(net, torch.randn(1, 3, 32, 32)) if part.name == SKIP]
    assert (skip.level, skip.flops, skip.weight_elements) == (SKIP, 0, 0)
    assert skip.read_elements == skip.written_elements == 2 * 4 * 32**2 + 2 * 8 * 16**2


@pytest.mark.parametrize("join", [torch.cat, torch.concat, torch.concatenate])
def test_a_concatenation_by_any_name_is_one(join: Any) -> None:
    net = Made(lambda image, layer: join([image, layer(image)], dim=1), nn.ReLU())
    (skip,) = [part for part in layer_work(net, torch.randn(1, 3, 4, 4)) if part.name == SKIP]
    assert (skip.read_elements, skip.written_elements) == (96, 96)


def test_a_concatenation_is_its_layer_s_and_two_runs_are_twice_the_work() -> None:
    class Doubled(nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return torch.cat([image, image])

    work = layer_work(nn.Sequential(Doubled()), torch.randn(1, 3, 4, 4))
    assert [(part.kind, part.written_elements) for part in work] == [("Doubled", 96), ("between layers", 0)]
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


def test_a_kernel_belongs_to_the_layer_that_launched_it_replayed_or_not() -> None:
    times = {part.name: part.seconds_per_call for part in own_times(eager(), 1)}
    assert times == pytest.approx({"a": 30e-6, "b": 5e-6, "": 4e-6, SKIP: 2e-6})
    found = replayed_times(replayed(["conv", "relu", "pad", "CatArrayBatched"] * 2), eager(), 2)
    times = {part.name: part.seconds_per_call for part in found}
    assert times == pytest.approx({"a": 6e-6, "b": 6e-6, "": 6e-6, SKIP: 6e-6})


@pytest.mark.parametrize(
    "names", [["conv", "relu"], ["conv", "pad", "relu", "CatArrayBatched"], ["conv", "relu", "pad", "other"]]
)
def test_other_kernels_than_the_uncaptured_call_s_have_no_layer(names: list[str]) -> None:
    assert replayed_times(replayed(names), eager(), 1) is None


def test_layers_with_channels_say_them() -> None:
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
    host = (found.launch_seconds, found.framework_seconds, found.interpreter_seconds, found.waiting_seconds)
    assert (found.wall_seconds, found.device_seconds) == pytest.approx((56e-6, 40e-6))
    assert host == pytest.approx((4e-6, 8e-6, 8e-6, 36e-6))


def test_a_split_claims_no_more_than_is_annotated() -> None:
    assert split(launched(1, "conv", 0, 5, 5), 1) is None
    found = split([event("user_annotation", "call", 0, 10), event("cpu_op", "aten::relu", 1, 6)], 1)
    assert found.device_seconds is None
    assert found.framework_seconds == pytest.approx(6e-6)
