"""Networks of libraries, made as a run makes them, but tiny; skipped where a library is missing."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from models import checkpoint
from models.build import build_model, maker_of_net
from models.library_nets import made, monai_net, smp_net
from models.torchvision_nets import NETS, SegmentationNet
from pipeline.errors import ModelError, nearest
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
    needs(PRESETS[name][0])
    model = asked(composed("preset=smoke", "stage=eager", f"model={name}")).model
    with torch.device("meta"):
        net = maker_of_net(model.target)(**model.options)
    assert sum(part.numel() for part in net.parameters()) > 10**6
    assert not any(part.startswith("net.") for part in net.state_dict())


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("smp", ["model.options.architecture=Unett"], "no network of segmentation_models_pytorch; did you mean 'Unet'"),
        ("smp", ["model.options.encoder_name=resnet-34"], "no encoder of smp; did you mean 'resnet34'?"),
        ("smp", ["model.options.encoder_name=tu-resnet81"], "no encoder of timm; did you mean 'tu-resnet"),
        ("smp", ["+model.options.encoder_nam=x"], "encoder_nam: no option of smp's Unet; did you mean 'encoder_name'?"),
        ("smp", ["model.options.encoder_name=timm-skresnet18", "+model.options.clases=3"], "did you mean 'classes'?"),
        ("smp", ["model.options.encoder_name=tu-resnet18", "+model.options.depth=3"], "options don't fit Unet: "),
        ("monai", ["model.options.net=Unett"], "no network of monai.networks.nets; did you mean"),
        ("monai", ["model.options.net=SegResNet", "model.options.channels=[4]"], "'channels'; it takes spatial_dims"),
        ("monai", ["model.options.channels=4"], "model.options.channels=4: expected a list, such as [32,64,128]"),
        ("diffusers", ["model.options.down_block_types=[Down]"], "model.options don't fit UNet2DModel"),
        ("nnunet", ["model.options.net=ConvUNet"], "did you mean 'PlainConvUNet'?"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_preset_s_options_are_refused_in_one_line(name: str, options: list[str], said: str) -> None:
    needs(PRESETS[name][0])
    with pytest.raises(ModelError, match=re.escape(said)) as caught:
        net_of(name, options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("library", "make"), [("segmentation_models_pytorch", smp_net), ("monai.networks.nets", monai_net)]
)
def test_a_missing_library_is_told_with_its_package(library: str, make: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModelError, match=r"^model=\w+: .*; install it: python -m pip install [\w-]+$"):
        make()


def test_whatever_a_library_raises_and_an_unknown_net_are_one_line() -> None:
    def asserts(width: int) -> torch.nn.Module:
        raise AssertionError("too wide\n" * width)

    for width, said in ((2, "asserts: too wide; it takes width"), (0, "asserts: AssertionError;")):
        with pytest.raises(ModelError, match=said):
            made(asserts, {"width": width})
    with pytest.raises(ModelError, match=r"^model\.options\.net=fcn_resnet5: did you mean 'fcn_resnet50'\?$"):
        SegmentationNet("fcn_resnet5")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("DynUNet", {}, ""),
        ("MedNeXtS", {}, ""),
        ("Restormer", {}, ""),
        ("SegResNet", {"spatial_dims": 3}, ""),
        ("Quicknat", {"out_channels": 4, "spatial_dims": None}, ""),
        ("DAF3D", {"spatial_dims": 4}, "model.options.spatial_dims=4: MONAI's DAF3D doesn't take it; leave it out"),
        ("UNETR", {}, "model.options.net=UNETR: it also needs '+model.options.img_size=…', or type model=custom"),
        (
            "create_mednext",
            {"out_channels": 4},
            (
                "model=custom model.target=monai.networks.nets.mednext.create_mednext '+model.options.variant=S' "
                "'+model.options.spatial_dims=2' '+model.options.in_channels=3' '+model.options.out_channels=4'"
            ),
        ),
        ("UNETT", {}, "model.options.net=UNETT: no network of monai.networks.nets; did you mean 'UNETR'?"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_networks_of_monai_take_their_arguments(name: str, options: dict[str, int | None], said: str) -> None:
    needs("monai")
    if said:
        with pytest.raises(ModelError, match=re.escape(said)):
            monai_net(name, **options)
    else:
        assert isinstance(monai_net(name, **options), torch.nn.Module)


@pytest.mark.parametrize("encoder", ["timm-regnetx_002", "tu-regnetx_002"])
@pytest.mark.filterwarnings("ignore")
def test_encoders_of_smp_by_earlier_names_take_earlier_weights(encoder: str, tmp_path: Path) -> None:
    needs("segmentation_models_pytorch")
    first, second = smp_net(encoder_name=encoder), smp_net(encoder_name=encoder)
    old = {name.replace("encoder.model.", "encoder.", 1): part for name, part in first.state_dict().items()}
    torch.save(old, tmp_path / "net.pt")
    checkpoint.load_into(second, str(tmp_path / "net.pt"))
    assert torch.equal(next(first.parameters()), next(second.parameters()))


def test_long_lists_of_what_is_offered_are_cut() -> None:
    assert nearest("?", map(str, range(20))).endswith("10, 11, …")


@pytest.mark.parametrize(("before", "prefix"), [("", ""), ("model.",) * 2, ("state_dict.model.",) * 2])
def test_a_lightning_checkpoint_s_prefix_beside_the_net_s_own_is_taken_away(before: str, prefix: str) -> None:
    """MONAI's UNet calls its own layers model.…, as do those of a module that holds a net as its attribute."""
    own = ["model.0.weight", "model.1.weight"]
    groups = dict(zip(own, own, strict=True))
    assert checkpoint.prefix_of(groups, [before + name for name in own], None, "net.pt", []) == prefix


TARGET = "models.torchvision_nets.SegmentationNet"


@pytest.mark.parametrize("name", NETS)
def test_the_answer_has_the_image_s_height_and_width(name: str) -> None:
    net = build_model(TARGET, {"net": name, "classes": 3}, None, seed=0)
    with torch.device("meta"):
        theirs = NETS[name](weights=None, weights_backbone=None, num_classes=3).eval()
    theirs.load_state_dict(net.state_dict(), assign=True)
    image = torch.randn(1, 3, 33, 47)
    with torch.inference_mode():
        logits = net(image)
        assert logits.shape == (1, 3, 33, 47)
        assert torch.equal(logits, theirs(image)["out"])
