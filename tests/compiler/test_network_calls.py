"""Calls of a network that mix types, and exports that read the data of the batch at hand, leave nothing behind."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.compiler.agreement import distance
from pipeline.compiler.half import OneType
from pipeline.compiler.network_calls import exportable, exported_program

VALUE = torch.rand(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
TURN = torch.tensor([[0.8, 0.6, 0.0], [-0.6, 0.8, 0.0]])
PLACES = torch.arange(4).flip(0)


def placed(value: Tensor) -> Tensor:
    image = torch.zeros(2, 4, 8, 8)
    image[:, PLACES] = value
    return image


def written_out(value: Tensor) -> Tensor:
    image = torch.empty(2, 4, 8, 8)
    torch.matmul(value, torch.eye(8), out=image)
    return image


def warped(value: Tensor) -> Tensor:
    grid = functional.affine_grid(TURN.expand(2, 2, 3), [2, 4, 8, 8], align_corners=False)
    return functional.grid_sample(value, grid, align_corners=False)


def filtered_by_frequencies(value: Tensor) -> Tensor:
    spectrum = torch.fft.rfft2(value[..., :7, :7])
    return torch.fft.irfft2(spectrum * torch.complex(torch.ones(7, 4), torch.zeros(7, 4)), s=(7, 7))


CALLS: dict[Callable[[Tensor], Tensor], torch.dtype] = {
    lambda value: functional.conv2d(value, torch.ones(4, 1, 3, 3) / 9, groups=4): torch.float16,
    lambda value: torch.einsum("bchw,cd->bdhw", value, torch.eye(4) / 2): torch.float16,
    lambda value: functional.prelu(value - 0.5, torch.full((4,), 0.25)): torch.float16,
    lambda value: torch.zeros(2, 4, 8, 8).index_add_(1, PLACES, value): torch.float32,
    lambda value: value.clone().index_add_(1, PLACES, torch.ones(2, 4, 8, 8)): torch.float16, placed: torch.float32,
    written_out: torch.float32, warped: torch.float32, filtered_by_frequencies: torch.float32,
    lambda value: value * torch.linspace(0, 1, 8): torch.float32,
    lambda value: value.clone().add_(torch.linspace(0, 1, 8)): torch.float16,
    lambda value: torch.cat([value, torch.ones(2, 1, 8, 8)], 1): torch.float32,
    lambda value: value * torch.tensor(0.1): torch.float16,
    lambda value: torch.hypot(torch.full((8,), 1e5), value) / 1e5: torch.float32,
    lambda value: torch.multiply(torch.full((8,), 1e5), value) / 1e5: torch.float32,
    lambda value: torch.stft(value.flatten(1), 16, window=torch.ones(16), return_complex=True).abs(): torch.float32,
    lambda value: value.clone().index_put_((torch.tensor([0]),), torch.ones(1, 4, 8, 8)): torch.float16,
}  # fmt: skip


@pytest.mark.parametrize(("call", "dtype"), CALLS.items())
@torch.no_grad()
def test_a_function_is_given_one_type(call: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    """That of what it writes into, fp32 where places or frequencies are at stake, else half precision."""
    with OneType(torch.float16):
        found = call(VALUE.half())
    assert found.dtype == dtype
    assert distance(found.float(), call(VALUE)) < 2e-3


class Net(nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.call = nn.Conv2d(4, 4, 1), call

    def forward(self, image: Tensor) -> Tensor:
        with OneType(torch.float16):
            return self.call(self.first(image))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("call", CALLS)
@torch.no_grad()
def test_so_it_is_in_a_graph(call: Callable[[Tensor], Tensor]) -> None:
    net, image = Net(call).half().eval(), VALUE.half()
    exported = torch.export.export(net, (image,)).run_decompositions({}).module()
    assert torch.equal(exported(image), net(image))
    assert torch.equal(torch.jit.trace(net, image)(image), net(image))
    if call is placed and torch.__version__ >= "2.14":  # whose Dynamo hands no mode what is assigned to an index
        return
    torch._dynamo.reset()
    assert torch.equal(torch.compile(net, backend="eager", fullgraph=True)(image), net(image))


@pytest.mark.parametrize("may_set_weights", [False, True])
def test_data_is_not_set(may_set_weights: bool) -> None:
    value, weight = torch.ones(2), nn.Parameter(torch.ones(2))
    with pytest.raises(NotImplementedError, match="sets a tensor's data"), exportable(may_set_weights):
        value.data = torch.zeros(2)
    if not may_set_weights:
        with pytest.raises(NotImplementedError, match="sets a tensor's data"), exportable():
            weight.data = torch.zeros(2)
        return
    with exportable(may_set_weights):
        weight.data = torch.zeros(2)
    assert not weight.any()


def test_data_is_read_by_an_operator_that_a_graph_holds() -> None:
    value = torch.ones(2, requires_grad=True)
    with exportable():
        read = value.data
    assert torch.equal(read, value)
    assert read.data_ptr() == value.data_ptr()
    assert not read.requires_grad


class Deciding(nn.Module):
    def __init__(self, decide: Callable[["Deciding", Tensor], Tensor]) -> None:
        super().__init__()
        self.decide, self.switches = decide, torch.tensor([1.0, 0.0, 3.0])
        self.kept: Tensor
        self.register_buffer("kept", torch.tensor([[2, 0], [0, 1]]))
        self.gain = nn.Parameter(torch.tensor(0.5))

    def forward(self, image: Tensor) -> Tensor:
        return self.decide(self, image)


def by_a_copy(net: Deciding, image: Tensor) -> Tensor:
    held = torch.zeros(2)
    held[:1] = image.mean()
    return image.relu() if held.sum() > 0 else image


BY_ITS_OWN: list[Callable[[Deciding, Tensor], Tensor]] = [
    lambda net, image: image.relu() if net.switches[0] == 1 else image,
    lambda net, image: image * net.gain.item() if net.gain > 0.2 else image,
    lambda net, image: image + sum(number for row in net.kept.tolist() for number in row),
    lambda net, image: image[:, : int(net.switches.argmax())],
    lambda net, image: image.sigmoid() if torch.equal(net.kept, net.kept.T) else image,
    lambda net, image: [image, -image][net.kept[0, 1]],
]


@pytest.mark.parametrize("decide", BY_ITS_OWN)
def test_a_net_that_decides_by_its_own_tensors_is_one_graph(decide: Callable[[Deciding, Tensor], Tensor]) -> None:
    net = Deciding(decide)
    graph = exported_program(net, (VALUE,)).module()
    for image in (VALUE, VALUE - 1):
        assert torch.equal(graph(image), net(image))
    assert "forward" not in vars(net)


@pytest.mark.parametrize("decide", [lambda _, image: image.relu() if image.mean() > 0 else image, by_a_copy])
def test_a_net_that_decides_by_its_image_is_refused_by_place(decide: Callable[[Deciding, Tensor], Tensor]) -> None:
    with pytest.raises(NotImplementedError, match=r"values that follow from its input \(test_network_calls\.py:\d+\)"):
        exported_program(Deciding(decide), (VALUE,))
