"""Whose a kernel is, told by the order in which layers must run."""

import pytest
import torch
from torch import Tensor, nn

from models.unet import UNet
from pipeline.profiling.layer_order import ComputeLayer, OrderError, compute_layers, placed, times
from pipeline.profiling.layers import layer_work
from pipeline.profiling.layout_changes import trace_changes
from pipeline.records.chrome_trace import TraceEvent
from pipeline.records.diagnostics import SKIP
from tests.profiling.traced import launched

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


def test_a_unet_has_one_order_and_it_is_that_of_its_layers() -> None:
    """Every layer with FLOPs is found, named as the record names it, and has one place; pools lie where they are."""
    torch.manual_seed(0)
    net, image = UNet(base=4, depth=2).eval(), torch.randn(1, 3, 32, 32)
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
        return self.head(self.second(self.first(start)) + self.beside(start))  # type: ignore[no-any-return]


def test_what_could_run_in_another_order_is_not_certain() -> None:
    found = {part.layer: part.certain for part in compute_layers(Shortcut().eval(), torch.randn(1, 3, 8, 8))}
    assert found == {"stem": True, "first": False, "second": False, "beside": False, "head": True}


def test_a_kernel_is_that_of_the_matrix_layer_before_it() -> None:
    """But for pools, copies, concatenations and changes of layout; what comes before the first layer is no layer's."""
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
    spots = [part.spot for part in found]
    assert (spots[0], spots[3], spots[4], spots[-1]) == (
        "before a",
        "between a and up",
        "between a and up",
        "after head",
    )
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
    """More kernels than layers, calls that differ, and a kernel whose name says that it is for something else."""
    with pytest.raises(OrderError, match=words):
        placed(replayed(names), calls, ORDER)
