"""The project's own networks: their sizes, their shapes, and what they do with odd ones."""

import pytest
import torch
from torch import nn

from models.bottleneck_nets import LargeChannels, ManyTinyLayers, WidePointwise
from models.unet import UNet, Upsampling
from pipeline.profiling.layers import layer_work
from pipeline.profiling.operators import counted


def test_the_classic_net_has_the_published_widths() -> None:
    """64-128-256-512-1024, 31 million parameters."""
    net = UNet()
    first = [next(part for part in level.modules() if isinstance(part, nn.Conv2d)) for level in net.encoder]
    widths = [conv.out_channels for conv in first] + [net.bottleneck.get_submodule("0").out_channels]
    assert widths == [64, 128, 256, 512, 1024]
    assert sum(part.numel() for part in net.parameters()) == 31_037_698


def test_the_copied_form_has_its_channels() -> None:
    """Bilinear with align_corners=True: 17.3 million parameters, and names of their own for each level as elsewhere."""
    net = UNet(upsampling="aligned")
    assert sum(part.numel() for part in net.parameters()) == 17_263_042
    convolutions = [part for part in net.decoder.modules() if isinstance(part, nn.Conv2d)]
    shapes = [(part.in_channels, part.out_channels) for part in convolutions]
    first, last = [(1024, 512), (512, 256), (256, 128), (128, 64)], [(512, 256), (256, 128), (128, 64), (64, 64)]
    assert (shapes[::2], shapes[1::2]) == (first, last)


@pytest.mark.parametrize("upsampling", ["transposed", "bilinear", "aligned"])
@pytest.mark.parametrize("size", [(32, 32), (33, 47), (1, 1), (64, 16)])
def test_logits_have_the_image_s_size(upsampling: Upsampling, size: tuple[int, int]) -> None:
    net = UNet(base=4, classes=3, upsampling=upsampling).eval()
    with torch.no_grad():
        assert net(torch.rand(2, 3, *size)).shape == (2, 3, *size)


def test_an_odd_size_without_padding_is_refused() -> None:
    with pytest.raises(ValueError, match="33×48 is no multiple of 16; set pad=true"):
        UNet(base=4, pad=False)(torch.rand(1, 3, 33, 48))


def test_a_net_that_no_machine_holds_is_refused_before_its_first_layer() -> None:
    """Its upper levels alone would take minutes to be drawn."""
    with pytest.raises(ValueError, match=r"^base=64 depth=40: a lowest level of .* channels; 16384 at most$"):
        UNet(depth=40)


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
