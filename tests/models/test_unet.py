"""The classic U-Net: its size, its shapes, and what it does with odd ones."""

import pytest
import torch
from torch import nn

from models.unet import UNet, Upsampling


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
