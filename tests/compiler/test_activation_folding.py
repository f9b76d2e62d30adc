"""Every activation of the table becomes part of the convolution before it, and costs the answer nothing."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pipeline.compiler.choose import with_choices
from pipeline.compiler.kernel_layer import Backend
from pipeline.compiler.lowering import Program
from pipeline.compiler.ops import BY_NAME
from pipeline.compiler.passes import rewrite
from pipeline.compiler.passes.convolutions import fold_activation, name_convolutions
from pipeline.compiler.quantize import Precision
from pipeline.kernels.common.activation import ACTIVATIONS, Activation
from tests.compiler.nets import CPU, classic, ending_in, error, image, traced

NETS: dict[str, tuple[Callable[[], nn.Module], Activation]] = {
    "relu": (nn.ReLU, Activation("relu")),
    "leaky_relu": (lambda: nn.LeakyReLU(0.2), Activation("leaky_relu", 0.2)),
    "leaky_relu in place": (lambda: nn.LeakyReLU(inplace=True), Activation("leaky_relu", 0.01)),
    "silu": (nn.SiLU, Activation("silu")),
    "gelu": (nn.GELU, Activation("gelu")),
    "hardswish": (nn.Hardswish, Activation("hardswish")),
    "mish": (nn.Mish, Activation("mish")),
}


def test_every_activation_that_an_operation_names_by_itself_is_tried_here() -> None:
    assert {activation.name for _, activation in NETS.values()} == {
        name for name, kind in ACTIVATIONS.items() if kind.aten
    }


@pytest.mark.parametrize("name", NETS)
def test_a_net_of_this_activation_is_left_whole_to_the_kernels(name: str) -> None:
    make, activation = NETS[name]
    net, batch = ending_in(classic(), make), image(1, 3, 32, 48)
    graph = traced(net, batch)
    assert len(rewrite(graph)["fold_activation"]) == 10
    assert {node.op for node in graph.nodes} <= {*BY_NAME, "joined"}
    assert {node.activation for node in graph.nodes if node.op in ("conv3x3", "conv_first")} == {activation}
    assert error(graph, net, batch) < 1e-3
    with torch.no_grad():
        ready = Program(graph, Precision("fp32"), CPU)
        by_library = with_choices(ready, dict.fromkeys(ready.layers, Backend.LIBRARY))(batch)
        assert float((by_library - net(batch)).norm() / net(batch).norm()) < 1e-3


def test_a_transposed_convolution_and_one_for_the_library_end_in_it_too() -> None:
    grow, strided = nn.ConvTranspose2d(16, 16, 2, 2), nn.Conv2d(16, 16, 3, 2, 1)
    odd = nn.ConvTranspose2d(16, 8, 3, 2)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), grow, nn.SiLU(), strided, nn.SiLU(), odd, nn.LeakyReLU(0.3)).eval()
    batch = image(1, 3, 8, 8)
    graph = traced(net, batch)
    rewrite(graph)
    assert [str(node.activation) for node in graph.nodes] == ["none", "silu", "silu", "leaky_relu 0.3"]
    assert error(graph, net, batch) < 1e-3


def test_an_activation_in_another_form_stays_torch_s() -> None:
    """As GELU's `approximate`, which no kernel knows: what is asked by keyword must not be lost."""
    graph = traced(ending_in(classic(), nn.ReLU), image(1, 3, 32, 48))
    name_convolutions(graph)
    for node in graph.found("aten.relu.default"):
        node.attributes["kwargs"] = {"approximate": "tanh"}
    assert fold_activation(graph) == []
