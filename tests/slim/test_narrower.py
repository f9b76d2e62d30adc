"""Narrower networks: made by arguments or by slices, of which channels, and that what they answer stays."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from models.build import build_model
from models.sliced import with_weights
from pipeline.errors import ModelError
from pipeline.records.request import ModelSpec
from pipeline.slim.command import width_of
from pipeline.slim.student import placed
from pipeline.slim.widths import (
    SLICED,
    Channels,
    Full,
    channels_of,
    kept,
    on_blocks,
    other_shapes,
    parameters,
    sliced,
)
from pipeline.worker.workload import net_of_spec
from tests.slim.nets import Meeting, Normed, Turned

IMAGE, HALF = (2, 3, 32, 32), (Fraction(1, 2),)


def unet(upsampling: str) -> nn.Module:
    return build_model("models.unet.UNet", {"base": 16, "depth": 2, "upsampling": upsampling}, None, 0)


def activated() -> nn.Module:
    """Make a network with the activations that a release of torch may not tag as pointwise."""
    kinds = nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.Mish, nn.Hardswish, nn.Hardtanh, nn.ReLU6
    each = [nn.GELU(), *(kind(inplace=inplace) for kind in kinds for inplace in (True, False))]
    return nn.Sequential(nn.Conv2d(3, 32, 3), *each, nn.Conv2d(32, 32, 3), nn.Conv2d(32, 3, 1))


def grown(groups: int) -> nn.Module:
    """Make a network with a transposed convolution of groups."""
    up = nn.ConvTranspose2d(32, 32, 2, 2, groups=groups)
    return nn.Sequential(nn.Conv2d(3, 32, 3), up, nn.ReLU(), nn.Conv2d(32, 256, 1), nn.Conv2d(256, 2, 2, 2))


NETS: dict[str, Callable[[], nn.Module]] = {name: partial(unet, name) for name in ("transposed", "bilinear", "aligned")}
NETS |= {"meeting": Meeting, "activations": activated}
NETS |= {"up by channel": partial(grown, 32), "up in groups": partial(grown, 4)}


def silence(net: nn.Module, channels: Channels) -> None:
    """Set every other channel that may be left out to zero, with its weights and shifts."""
    state = net.state_dict()
    for (name, axis), spans in channels.axes.items():
        makes = len(spans) == 1 and ((name, axis) in channels.makers or state[name].ndim == 1)
        if makes and not spans[0].root.fixed and "running_var" not in name:
            state[name].movedim(axis, 0)[1::2] = 0.0


@pytest.mark.parametrize("name", NETS)
def test_channels_that_do_nothing_are_cut_and_the_answer_stays(name: str) -> None:
    """Half of each group is silent, so half as many channels answer the same."""
    net, image = NETS[name]().eval(), torch.randn(IMAGE)
    channels = channels_of(net, [image])
    assert not channels.unknown
    silence(net, channels)
    slim = sliced(net, channels, HALF)
    assert sum(part.numel() for part in slim.parameters()) < 0.6 * sum(part.numel() for part in net.parameters())
    with torch.no_grad():
        assert torch.allclose(slim(image), net(image), atol=1e-5)


def test_a_sliced_network_is_made_again_by_the_sizes_of_its_weights() -> None:
    net, image = Meeting().eval(), torch.randn(IMAGE)
    slim = sliced(net, channels_of(net, [image]), (Fraction(1, 4),))
    again = with_weights(Meeting().eval(), slim.state_dict())
    assert again.first.out_channels == again.each.groups == 8
    assert again.several.groups == 4
    with torch.no_grad():
        assert torch.equal(again(image), slim(image))


def test_channels_of_tensors_with_several_names_are_cut_in_each() -> None:
    """As in nnU-Net's blocks, whose layers have a second name."""
    net = unet("transposed")
    net.again = net.encoder[0]
    slim = sliced(net, channels_of(net, [torch.randn(IMAGE)]), HALF)
    assert slim.again[0].weight.shape == slim.encoder[0][0].weight.shape == (8, 3, 3, 3)


@pytest.mark.parametrize(
    ("words", "widths"), [("1/2,1", [8, 32, 64, 8]), ("1/2,1/4,1", [8, 8, 64, 8]), ("1,1,1/4,1/2,1", [16, 32, 16, 16])]
)
def test_each_resolution_may_have_its_own_width(words: str, widths: list[int]) -> None:
    net, width = unet("transposed"), width_of(words)
    slim = sliced(net, channels_of(net, [torch.randn(IMAGE)]), width.shares)
    names = ("encoder.0.0", "encoder.1.0", "bottleneck.0", "decoder.1.0")
    assert [slim.get_submodule(name).out_channels for name in names] == widths
    assert width.text == words


@pytest.mark.parametrize("name", [*NETS, "volumes"])
def test_a_network_on_blocks_begins_as_that_of_their_means(name: str) -> None:
    volumes = nn.Sequential(nn.Conv3d(3, 8, 3, padding=1), nn.InstanceNorm3d(8), nn.ReLU(), nn.Conv3d(8, 2, 1))
    net = NETS.get(name, lambda: volumes)().eval()
    image = torch.randn((1, 3, 16, 8, 32) if name == "volumes" else IMAGE)
    blocks = on_blocks(net, channels_of(net, [image]), image, 2)
    means = functional.interpolate(image, scale_factor=0.5, mode="area")
    with torch.no_grad():
        assert torch.allclose(blocks(image), functional.interpolate(net(means), scale_factor=2), atol=1e-4)
        image[0, 0, ..., 0] += 1  # one pixel of each block
        assert not torch.equal(blocks(image), functional.interpolate(net(means), scale_factor=2))


def test_a_network_that_holds_sizes_is_refused_on_blocks() -> None:
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 2, 1), nn.LayerNorm(IMAGE[2:])).eval()
    with pytest.raises(ModelError, match=r"^slim: Sequential can't work on blocks of 2 pixels a side \([^\n]+\)$"):
        on_blocks(net, channels_of(net, [torch.randn(IMAGE)]), torch.randn(IMAGE), 2)


def test_larger_filters_and_scales_are_more_important() -> None:
    net, image = Meeting().eval(), torch.randn(IMAGE)
    with torch.no_grad():
        net.up.weight[:, 5] *= 100
    channels = channels_of(net, [image])
    [group] = channels.axes["up.bias", 0]
    assert torch.equal(kept(channels, net.state_dict(), {group.root: 1})["up.weight"], net.up.weight[:, 5:6])
    assert kept(channels, net.state_dict(), {group.root: 8})["up.weight"].shape == (48, 8, 2, 2)


@pytest.mark.parametrize(("make", "holds"), [(Turned, "flatten"), (Normed, "conv2d")])
def test_a_network_whose_channels_can_not_be_followed_is_refused(make: type[nn.Module], holds: str) -> None:
    """Channels that become pixels, and weights that are computed."""
    net = make().eval()
    with pytest.raises(ModelError, match=rf"no channels of {make.__name__} can be sliced; it holds .*{holds}"):
        sliced(net, channels_of(net, [torch.randn(IMAGE)]), HALF)


class Deciding(nn.Module):
    def forward(self, image: Tensor) -> Tensor:
        return image if image.sum() > 0 else -image


def test_a_network_that_is_no_graph_is_refused_in_a_line() -> None:
    with pytest.raises(ModelError, match=r"^slim: the network is no graph that can be sliced: [^\n]+$"):
        channels_of(Deciding(), [torch.randn(IMAGE)])


LARGE = (1, 3, 64, 64)
MONAI, NNUNET, SMP = "models.library_nets.monai_net", "models.nnunet_nets.nnunet_net", "models.library_nets.smp_net"
LEVELS = {"n_stages": 3, "features_per_stage": [16, 32, 64], "strides": [1, 2, 2]}


@pytest.mark.parametrize(
    ("library", "target", "options", "change"),
    [
        ("torch", "models.unet.UNet", {"base": 16, "depth": 2}, {"base": 8}),
        ("monai", MONAI, {"net": "UNet", "channels": [16, 32, 64]}, {"channels": [8, 16, 32]}),
        ("monai", MONAI, {"net": "SegResNet", "init_filters": 16}, {"init_filters": 8}),
        ("monai", MONAI, {"net": "DynUNet"}, None),
        ("dynamic_network_architectures", NNUNET, LEVELS, {"features_per_stage": [8, 16, 32]}),
        ("segmentation_models_pytorch", SMP, {"encoder_name": "resnet18"}, None),
    ],
)
@pytest.mark.parametrize("words", ["1/2", "2x2,1/2"])
@pytest.mark.filterwarnings("ignore:input's size at dim=1")  # of a norm without weights, which doesn't use it
def test_a_narrower_network_is_made_by_arguments_or_else_by_slices(
    library: str, target: str, options: dict[str, Any], change: dict[str, Any] | None, words: str, tmp_path: Path
) -> None:
    """It is made again of what the card names, and its weights; that of blocks is sliced."""
    pytest.importorskip(library)
    spec, image = ModelSpec("full", target, options), torch.randn(LARGE)
    full = Full(spec, net_of_spec(spec, 0), image, 0)
    if words != "1/2" and options.get("net") in ("SegResNet", "DynUNet"):
        words = "2x2"  # with norms of groups, and with further heads in training
    made, slim = full.slimmer(width_of(words))
    by_slices = change is None or words != "1/2"
    assert made.target == (SLICED if by_slices else target)
    assert made.options == (made.options if by_slices else {**options, **(change or {})})
    assert parameters(slim) < (1.1 if words == "2x2" else 0.35) * parameters(full.net)
    weights = tmp_path / "weights.safetensors"
    save_file({name: part.clone() for name, part in slim.state_dict().items()}, weights)
    again = net_of_spec(placed(made, weights), 1)
    with torch.no_grad():
        assert torch.equal(again(image), slim(image))


def test_other_shapes_keep_to_the_arguments_that_there_are() -> None:
    taken = {"channels": (16, 32, 64), "strides": (2, 2), "num_res_units": 2, "kernel_size": 3, "dropout": 0.1}
    assert other_shapes(taken) == {
        "one level fewer": {"channels": [16, 32], "strides": [2]},
        "flat widths": {"channels": [32, 32, 32]},
        "fewer blocks": {"num_res_units": 1},
    }
    assert other_shapes({"depth": 4, "base": 64})["one level fewer"] == {"depth": 3}
