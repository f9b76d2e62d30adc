"""The nets that check the bottlenecks are what they are said to be."""

import pytest
import torch
from torch import nn

from models.bottleneck_nets import LargeChannels, ManyTinyLayers, WidePointwise
from pipeline.profiling.layers import layer_work
from pipeline.profiling.operators import counted


def intensity(net: nn.Module, size: int) -> float:
    image = torch.randn(1, 3, size, size)
    return sum(part.flops for part in layer_work(net.eval(), image)) / counted(net, image)


@pytest.mark.parametrize(("net", "size"), [(ManyTinyLayers(), 33), (WidePointwise(), 33), (LargeChannels(2, 64), 32)])
def test_each_answers_with_two_classes_a_pixel(net: nn.Module, size: int) -> None:
    with torch.inference_mode():
        assert net(torch.randn(2, 3, size, size)).shape == (2, 2, size, size)


def test_their_intensities_lie_far_apart() -> None:
    """The pointwise chain computes next to nothing for a byte, the wide convolutions hundreds of times more."""
    assert intensity(WidePointwise(), 64) < 2
    assert intensity(LargeChannels(2, 512), 256) > 100


def test_the_tiny_layers_are_many_and_tiny() -> None:
    """None has more than a tenth of a millisecond's work on a device of a TFLOP a second."""
    layers = layer_work(ManyTinyLayers().eval(), torch.randn(1, 3, 64, 64))
    assert len(layers) > 40
    assert max(part.flops for part in layers) < 1e8
