"""Every activation of the table becomes part of the convolution before it, and costs the answer nothing."""

import copy

import pytest
import torch
from torch import nn

from pipeline.kernels.common.activation import Activation
from tests.compiler.nets import classic, ending_in, image
from tests.compiler.rewriting import computing, distance, layers, lowered, rewritten_from
from tests.kernels.activation_modules import MODULES

# But those with a slope for each channel, which the first layer's kernel doesn't take: `nets.Wide` has one.
OF_ONE_SLOPE = [(module, activation) for module, activation in MODULES if activation and not activation.by_channel]


@pytest.mark.parametrize(("module", "activation"), OF_ONE_SLOPE, ids=str)
def test_a_net_of_this_activation_is_left_whole_to_the_kernels(module: nn.Module, activation: Activation) -> None:
    net, batch = ending_in(classic(depth=0), lambda: copy.deepcopy(module)), image(1, 3, 8, 12)
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
