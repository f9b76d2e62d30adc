"""Every activation of the table becomes part of the convolution before it, and costs the answer nothing."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pipeline.kernels.common.activation import ACTIVATIONS, Activation
from tests.compiler.nets import classic, ending_in, image
from tests.compiler.rewriting import computing, distance, layers, lowered, rewritten_from

NETS: dict[str, tuple[Callable[[], nn.Module], Activation]] = {
    "relu": (nn.ReLU, Activation("relu")),
    "leaky_relu": (lambda: nn.LeakyReLU(0.2), Activation("leaky_relu", 0.2)),
    "leaky_relu in place": (lambda: nn.LeakyReLU(inplace=True), Activation("leaky_relu", 0.01)),
    "silu": (nn.SiLU, Activation("silu")),
    "gelu": (nn.GELU, Activation("gelu")),
    "hardswish": (nn.Hardswish, Activation("hardswish")),
    "mish": (nn.Mish, Activation("mish")),
    "gelu by tanh": (lambda: nn.GELU(approximate="tanh"), Activation("gelu_tanh")),
    "elu": (lambda: nn.ELU(0.5), Activation("elu", 0.5)),
}


def test_every_activation_of_the_table_is_tried_here() -> None:
    """But the one with a slope for each channel, which the first layer's kernel doesn't take: `nets.Wide` has it."""
    assert {activation.name for _, activation in NETS.values()} | {"none", "prelu"} == set(ACTIVATIONS)


@pytest.mark.parametrize("name", NETS)
def test_a_net_of_this_activation_is_left_whole_to_the_kernels(name: str) -> None:
    make, activation = NETS[name]
    net, batch = ending_in(classic(depth=0), make), image(1, 3, 8, 12)
    rewritten = rewritten_from(net, batch)
    assert len(rewritten.matched["fold_activation"]) == 2
    assert [layer.activation for layer in layers(rewritten).values()] == [activation, activation]
    graph = lowered(rewritten)
    assert computing(graph) == set()
    with torch.no_grad():
        wanted = net(batch)
    assert distance(graph, batch, wanted) < 1e-3
    assert distance(lowered(rewritten, by_library=list(layers(rewritten))), batch, wanted) < 1e-5


def test_a_transposed_convolution_ends_in_it_too_and_what_no_kernel_takes_keeps_its_own() -> None:
    grow, strided = nn.ConvTranspose2d(16, 16, 2, 2), nn.Conv2d(16, 16, 5, 2, 2)
    odd = nn.ConvTranspose2d(16, 8, 3, 2)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), grow, nn.SiLU(), strided, nn.SiLU(), odd, nn.LeakyReLU(0.3)).eval()
    batch = image(1, 3, 8, 8)
    rewritten = rewritten_from(net, batch)
    assert [str(layer.activation) for layer in layers(rewritten).values()] == ["none", "silu"]
    graph = lowered(rewritten)
    assert {"aten.silu.default", "aten.leaky_relu.default"} <= computing(graph)
    with torch.no_grad():
        assert distance(graph, batch, net(batch)) < 1e-3
