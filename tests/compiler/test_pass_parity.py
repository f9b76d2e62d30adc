"""A rewritten net gives the untouched net's answer, whatever the net, and says what it matched."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler.aten import aten
from pipeline.compiler.graph import UnsupportedError
from pipeline.compiler.passes import PASSES, rewrite
from tests.compiler.nets import Halves, Instance, Residual, classic, error, image, lively, traced

NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "classic": (classic, (2, 3, 32, 48)),
    "odd size": (lambda: classic(depth=3), (1, 3, 37, 51)),
    "one level, batch 3": (lambda: classic(depth=1), (3, 3, 16, 16)),
    "no level": (lambda: classic(depth=0), (1, 3, 9, 7)),
    "channels no kernel takes": (lambda: classic(base=12), (2, 3, 32, 32)),
    "bilinear": (lambda: classic(upsampling="bilinear"), (2, 3, 32, 48)),
    "bilinear, odd size": (lambda: classic(upsampling="bilinear"), (1, 3, 33, 46)),
    "many classes": (lambda: classic(classes=11), (1, 3, 32, 32)),
    "one channel in": (lambda: classic(in_channels=1), (1, 1, 32, 32)),
    "residual": (lambda: lively(Residual()), (2, 3, 32, 48)),
    "instance norm": (lambda: lively(Instance()), (2, 3, 32, 48)),
    "instance norm, odd size": (lambda: lively(Instance()), (1, 3, 33, 47)),
    "two answers": (lambda: lively(Halves()), (1, 3, 16, 16)),
}


@pytest.fixture(params=NETS)
def net_and_batch(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    make, size = NETS[request.param]
    return make(), image(*size)


def test_the_rewritten_net_gives_the_same_answer(net_and_batch: tuple[nn.Module, Tensor]) -> None:
    net, batch = net_and_batch
    graph = traced(net, batch)
    rewrite(graph)
    assert error(graph, net, batch) < 1e-3


def test_every_single_pass_keeps_the_answer(net_and_batch: tuple[nn.Module, Tensor]) -> None:
    net, batch = net_and_batch
    graph = traced(net, batch)
    assert error(graph, net, batch) < 1e-5
    for step in PASSES:
        step(graph)
        assert error(graph, net, batch) < 1e-3, step.__name__


def test_a_rewrite_leaves_the_net_alone() -> None:
    net = classic()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    rewrite(traced(net, image(1, 3, 32, 32)))
    after = net.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_of_the_classic_net_nothing_is_left_to_torch() -> None:
    graph = traced(classic(), image(2, 3, 32, 48))
    matched = {name: len(layers) for name, layers in rewrite(graph).items()}
    assert Counter(node.op for node in graph.nodes) == {"conv3x3": 9, "upconv2x2": 2, "joined": 2, "conv_first": 1}
    assert matched == {
        "name_convolutions": 13, "fold_batch_norm": 10, "fold_activation": 10, "take_conv3x3": 9,
        "take_conv_first": 1, "take_upconv2x2": 2, "take_conv1x1": 0, "take_upsample2x": 0,
        "pool_where_it_is_made": 2, "fold_head": 1, "join_without_copy": 2,
    }  # fmt: skip


def test_of_the_bilinear_net_nothing_is_left_to_torch() -> None:
    graph = traced(classic(upsampling="bilinear"), image(1, 3, 32, 32))
    rewrite(graph)
    assert {node.op for node in graph.nodes} == {"conv3x3", "conv_first", "conv1x1", "upsample2x", "joined"}


def test_the_padding_of_an_odd_size_stays_in_front_of_the_first_layer() -> None:
    graph = traced(classic(), image(1, 3, 33, 47))
    assert rewrite(graph)["take_conv_first"] == ["encoder.0.0"]
    assert graph.nodes[0].op == "aten.pad.default"


def test_a_net_that_writes_through_a_view_is_refused() -> None:
    class Sneaky(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            value = image + 1
            value[:, :1].mul_(2)
            return value

    with pytest.raises(UnsupportedError, match=r"aten\.mul_\.Tensor writes into a value"):
        traced(Sneaky(), image(1, 3, 8, 8))


@pytest.mark.parametrize("name", ["os.system", "aten.nothing.default", "prims.add.default", "aten.__class__.mro"])
def test_a_graph_can_name_nothing_but_operations_of_aten(name: str) -> None:
    with pytest.raises(UnsupportedError, match="no operation of ATen"):
        aten(name)


def test_a_net_that_torch_cannot_export_is_refused_in_one_line() -> None:
    class Fickle(nn.Module):
        def forward(self, image: Tensor) -> Tensor:
            return image if image.sum() > 0 else -image

    with pytest.raises(UnsupportedError, match="torch can't export the net: ") as caught:
        traced(Fickle(), image(1, 3, 8, 8))
    assert "\n" not in str(caught.value)


def test_layers_go_by_the_names_that_the_user_gave_them() -> None:
    graph = traced(classic(depth=1), image(1, 3, 16, 16))
    rewrite(graph)
    names = [node.name for node in graph.nodes]
    assert names == [
        "encoder.0.0", "encoder.0.3", "bottleneck.0", "bottleneck.3", "upsample.0", "cat", "decoder.0.0", "head"
    ]  # fmt: skip
