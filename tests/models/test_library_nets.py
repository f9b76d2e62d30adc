"""Nets of other houses by their presets, made as a run makes them, but tiny; skipped where a library is missing."""

import sys
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from models import checkpoint
from models.build import build_model, maker_of_net
from models.library_nets import imported, made, monai_net, nearest, smp_net
from pipeline.errors import ModelError
from tests.config.test_load import asked, composed

IMAGES = (2, 3, 32, 64)
SMALL_BLOCKS = [
    "model.options.block_out_channels=[32,32]",
    "model.options.layers_per_block=1",
    "model.options.down_block_types=[DownBlock2D,AttnDownBlock2D]",
    "model.options.up_block_types=[AttnUpBlock2D,UpBlock2D]",
]
SMALL_STAGES = [f"+model.options.{word}" for word in ("n_stages=3", "features_per_stage=[4,8,8]", "strides=[1,2,2]")]
SMALL_CHANNELS = ["model.options.channels=[4,8]", "model.options.strides=[2]", "model.options.num_res_units=1"]
PRESETS = {
    "smp": ("segmentation_models_pytorch", ["model.options.encoder_name=resnet18"], 2),
    "monai": ("monai", SMALL_CHANNELS, 2),
    "nnunet": ("dynamic_network_architectures", [*SMALL_STAGES, "model.options.num_classes=4"], 4),
    "diffusers": ("diffusers", SMALL_BLOCKS, 3),
}


def net_of(name: str, options: list[str]) -> torch.nn.Module:
    model = asked(composed("preset=smoke", "stage=eager", f"model={name}", *options)).model
    return build_model(model.target, model.options, model.checkpoint, 0, model.output)


def needs(library: str) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} isn't installed")


@pytest.mark.filterwarnings("ignore")  # the libraries' own, of many kinds
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_s_net_answers_and_is_exported(name: str) -> None:
    """Logits of the image's size, from the net and from what torch.export makes of it."""
    library, options, classes = PRESETS[name]
    needs(library)
    net, images = net_of(name, options), torch.randn(IMAGES)
    with torch.no_grad():
        logits: Tensor = net(images)
        exported = torch.export.export(net, (images,)).module()(images)
    assert logits.shape == (IMAGES[0], classes, *IMAGES[2:])
    torch.testing.assert_close(exported, logits)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_as_it_stands_is_a_net(name: str) -> None:
    """Made of no values, on torch's device "meta"; its layers are called what the library calls them."""
    needs(PRESETS[name][0])
    model = asked(composed("preset=smoke", "stage=eager", f"model={name}")).model
    with torch.device("meta"):
        net = maker_of_net(model.target)(**model.options)
    assert sum(part.numel() for part in net.parameters()) > 10**6
    assert not any(part.startswith("net.") for part in net.state_dict())


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "smp",
            ["model.options.architecture=Unett"],
            "no network of segmentation_models_pytorch; did you mean 'Unet'?",
        ),
        ("smp", ["model.options.encoder_name=resnet-34"], "no encoder of smp; did you mean 'resnet34'?"),
        ("smp", ["model.options.encoder_name=tu-resnet81"], "no encoder of timm; did you mean 'tu-resnet"),
        ("smp", ["+model.options.encoder_nam=x"], "encoder_nam: no option of smp's Unet; did you mean 'encoder_name'?"),
        ("smp", ["model.options.encoder_name=timm-skresnet18", "+model.options.clases=3"], "did you mean 'classes'?"),
        ("smp", ["model.options.encoder_name=tu-resnet18", "+model.options.depth=3"], "options don't fit Unet: "),
        ("monai", ["model.options.net=Unett"], "no network of monai.networks.nets; did you mean"),
        ("monai", ["model.options.net=SegResNet", "model.options.channels=[4]"], "'channels'; it takes spatial_dims"),
        ("diffusers", ["model.options.down_block_types=[Down]"], "model.options don't fit UNet2DModel"),
        ("nnunet", ["model.options.net=ConvUNet"], "did you mean 'PlainConvUNet'?"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_preset_s_options_are_refused_in_one_line(name: str, options: list[str], said: str) -> None:
    needs(PRESETS[name][0])
    with pytest.raises(ModelError) as caught:
        net_of(name, options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("library", "make"), [("segmentation_models_pytorch", smp_net), ("monai.networks.nets", monai_net)]
)
def test_a_library_that_is_missing_is_told_with_its_package(
    library: str, make: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModelError, match=r"^model=\w+: .*; install it: python -m pip install [\w-]+$"):
        make()


def test_whatever_a_library_raises_is_one_line() -> None:
    """An assertion with lines of explanation, and one without a word; an input's error stays what it is."""

    def asserts(width: int) -> torch.nn.Module:
        raise AssertionError("too wide\n" * width)

    def refuses(width: int) -> torch.nn.Module:
        raise ModelError("too large")

    for maker, width, said in ((asserts, 2, "asserts: too wide; it takes width"), (asserts, 0, ": AssertionError;")):
        with pytest.raises(ModelError) as caught:
            made(maker, {"width": width})
        assert said in str(caught.value)
    with pytest.raises(ModelError, match=r"^too large$"):
        made(refuses, {"width": 1})


def test_what_is_near_is_offered_and_long_lists_are_cut() -> None:
    assert nearest("Unet", ["UNet", "VNet"]) == "did you mean 'UNet'?"
    assert nearest("?", map(str, range(20))).endswith("10, 11, …")
    assert nearest("?", ["a", "b"]) == "choose one of: a, b"
    assert imported("json", "json", "none").loads("1") == 1


def test_a_lightning_checkpoint_s_prefix_beside_the_net_s_own_is_taken_away() -> None:
    """MONAI's UNet calls its own layers model.…, as do those of a module that holds a net as its attribute."""
    own = {"model.0.weight": torch.ones(1), "model.1.weight": torch.ones(1)}
    held = {f"model.{name}": part for name, part in own.items()}
    for given, told in ((own, ""), (held, "its weights are those under 'model.'")):
        assert checkpoint.without_prefixes(own, given) == (own, told)
