"""Networks of libraries, made as a run makes them, but tiny, and what nnU-Net's plans say; skipped without theirs."""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchvision.models import get_model

from models import checkpoint
from models.build import build_model, maker_of_net
from models.library_nets import made, monai_net, smp_net
from models.nnunet_nets import ARCHITECTURES, defaults, described_sizes, nnunet_net, planned
from models.torchvision_nets import NAMES, SegmentationNet
from pipeline.errors import CheckpointError, ModelError, nearest
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


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_has_the_image_s_height_and_width(name: str) -> None:
    net = build_model(TARGET, {"net": name, "classes": 3}, None, seed=0)
    with torch.device("meta"):
        theirs = get_model(name, weights=None, weights_backbone=None, num_classes=3).eval()
    theirs.load_state_dict(net.state_dict(), assign=True)
    image = torch.randn(1, 3, 33, 47)
    with torch.inference_mode():
        logits = net(image)
        assert logits.shape == (1, 3, 33, 47)
        assert torch.equal(logits, theirs(image)["out"])


NUMBERS = {"n_stages": 2, "features_per_stage": [4, 8], "kernel_sizes": [[3, 3], [3, 3]], "strides": [[1, 1], [2, 2]]}
OF_2_4 = {
    "network_class_name": f"{ARCHITECTURES}.PlainConvUNet",
    "arch_kwargs": {
        **NUMBERS,
        "conv_op": "torch.nn.modules.conv.Conv2d",
        "norm_op": "torch.nn.modules.instancenorm.InstanceNorm2d",
        "dropout_op": None,
        "n_conv_per_stage": [2, 2],
        "n_conv_per_stage_decoder": [2],
    },
    "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
}
OF_2_2 = {
    "UNet_class_name": "ResidualEncoderUNet", "UNet_base_num_features": 32, "unet_max_num_features": 48,
    "n_conv_per_stage_encoder": [1, 3], "n_conv_per_stage_decoder": [1], "pool_op_kernel_sizes": [[1, 1], [2, 2]],
    "conv_kernel_sizes": [[3, 3], [3, 3]],
}  # fmt: skip
DATASET: dict[str, Any] = {"channel_names": {"0": "CT", "1": "PET"}, "labels": {"background": 0, "liver": 1, "cyst": 2}}


def folder_of(path: Path, configurations: dict[str, Any], dataset: dict[str, Any] | None = None) -> Path:
    (path / "plans.json").write_text(json.dumps({"configurations": configurations}))
    (path / "dataset.json").write_text(json.dumps(dataset or DATASET))
    return path


def test_plans_name_the_net_and_its_layers(tmp_path: Path) -> None:
    """With the classes that they name by text; a configuration has what it inherits, and its own before that."""
    below = {"inherits_from": "2d", "patch_size": [64, 64]}
    net, given = planned(folder_of(tmp_path, {"2d": {"architecture": OF_2_4}, "small": below}), "small")
    assert net == "PlainConvUNet"
    assert (given["conv_op"], given["norm_op"], given["dropout_op"]) == (nn.Conv2d, nn.InstanceNorm2d, None)
    assert given["features_per_stage"] == [4, 8]


def test_plans_before_2_4_name_numbers_alone(tmp_path: Path) -> None:
    """Widths double up to the widest; a residual net counts blocks; layers are those that nnU-Net gave every net."""
    net, given = planned(folder_of(tmp_path, {"2d": OF_2_2}), "2d")
    assert net == "ResidualEncoderUNet"
    assert (given["n_stages"], given["features_per_stage"]) == (2, [32, 48])
    assert (given["n_blocks_per_stage"], given["n_conv_per_stage_decoder"]) == ([1, 3], [1])
    assert (given["conv_op"], given["norm_op"], given["nonlin"]) == (nn.Conv2d, nn.InstanceNorm2d, nn.LeakyReLU)


def test_a_configuration_without_plans_is_taken_or_refused() -> None:
    volumes, images = defaults("ResidualEncoderUNet", "3d_fullres"), defaults("PlainConvUNet", "2d")
    assert (volumes["conv_op"], len(volumes["n_blocks_per_stage"]), volumes["n_stages"]) == (nn.Conv3d, 6, 6)
    assert (images["norm_op"], len(images["strides"]), images["n_conv_per_stage"]) == (nn.InstanceNorm2d, 7, 2)
    with pytest.raises(ModelError, match="did you mean '3d_fullres'"):
        defaults("PlainConvUNet", "3d_fulres")


@pytest.mark.parametrize(
    ("dataset", "sizes"),
    [
        (DATASET, (2, 3)),
        ({"modality": {"0": "CT"}, "labels": {"background": 0, "organ": 1, "ignore": 2}}, (1, 2)),
        ({"channel_names": {"0": "R"}, "labels": {"background": 0, "whole": [1, 2], "core": [2]}}, (1, 2)),
    ],
)
def test_a_dataset_gives_channels_and_classes(tmp_path: Path, dataset: dict[str, Any], sizes: tuple[int, int]) -> None:
    found = described_sizes(folder_of(tmp_path, {}, dataset) / "dataset.json")
    assert (found["input_channels"], found["num_classes"]) == sizes


CASCADE = {
    "3d_lowres": {"architecture": OF_2_4},
    "3d_fullres": {"architecture": OF_2_4},
    "3d_cascade_fullres": {"inherits_from": "3d_fullres", "previous_stage": "3d_lowres"},
}
HOSTILE = {**OF_2_4, "arch_kwargs": {"conv_op": "os.system"}}
STRANGER = {**OF_2_4, "network_class_name": "os.path.join"}
BAD: list[tuple[dict[str, Any] | str, str, str]] = [
    ({"2d": {"architecture": HOSTILE}}, "2d", "conv_op=os.system: no class of a layer called system in os"),
    ({"2d": {"architecture": STRANGER}}, "2d", "its network is os.path.join; supported are those of"),
    ("{", "2d", "Expecting property name"),
    ("[]", "2d", "a list, no key"),
    ("{}", "2d", "no 'con"),
    ({"2d": {"architecture": 5}}, "2d", "no 'architecture' in it"),
    ({"2d": {"inherits_from": "2d"}}, "2d", "builds on itself"),
    ({"2d": {}}, "2d", "neither 'architecture' nor 'conv_kernel_sizes' in it"),
    ({"2d": {}}, "3d_fullres", "model.options.configuration=3d_fullres: not in"),
    (CASCADE, "3d_cascade_fullres", "which takes the labels that 3d_lowres gave beside the images, and no images here"),
    (CASCADE, "3d_cascade_fullres", "plans.json also has 3d_lowres, 3d_fullres"),
]


@pytest.mark.parametrize(("configurations", "asked", "said"), BAD)
def test_bad_plans_are_one_line(tmp_path: Path, configurations: dict[str, Any] | str, asked: str, said: str) -> None:
    folder_of(tmp_path, {} if isinstance(configurations, str) else configurations)
    if isinstance(configurations, str):
        (tmp_path / "plans.json").write_text(configurations)
    with pytest.raises(ModelError) as caught:
        planned(tmp_path, asked)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dataset", [{"labels": {"background": 0}}, {"channel_names": {"0": "CT"}}, None])
def test_a_dataset_without_channels_or_labels_is_told(tmp_path: Path, dataset: dict[str, Any] | None) -> None:
    path = tmp_path / "no.json" if dataset is None else folder_of(tmp_path, {}, dataset) / "dataset.json"
    with pytest.raises(ModelError, match=r"in it; it is no|No such file"):
        described_sizes(path)


class Holder:
    """What a hostile checkpoint's number could be: one of numpy's that holds an object."""

    def __reduce__(self) -> tuple[Any, ...]:
        return checkpoint.MAKERS[0], (np.dtype("O"), b"cos\nsystem\n.")


def test_a_trained_model_s_weights_are_read_without_code(tmp_path: Path) -> None:
    """Numpy's numbers beside them, as nnU-Net keeps its losses, are taken; its numbers that hold objects aren't."""
    weights = {"encoder.weight": torch.ones(2)}
    beside = {"logging": {"loss": [np.float64(0.5), np.float32(1)], "epoch": np.int64(3)}, "trainer_name": "nnUNet"}
    torch.save({"network_weights": weights, **beside}, tmp_path / "checkpoint_final.pth")
    found = checkpoint.read(tmp_path / "checkpoint_final.pth").tensors
    assert torch.equal(found["network_weights.encoder.weight"], torch.ones(2))
    torch.save({"network_weights": weights, "logging": Holder()}, tmp_path / "hostile.pth")
    with pytest.raises(CheckpointError, match="could run code"):
        checkpoint.read(tmp_path / "hostile.pth")


@pytest.mark.filterwarnings("ignore")
def test_a_trained_folder_gives_its_net_and_takes_its_weights(tmp_path: Path) -> None:
    """Weights that were trained with deep supervision fit, and the answer is the full size alone."""
    unet = pytest.importorskip(ARCHITECTURES)
    folder = folder_of(tmp_path, {"2d": {"architecture": OF_2_4}})
    _, given = planned(folder, "2d")
    theirs = unet.PlainConvUNet(input_channels=2, num_classes=3, deep_supervision=True, **given)
    torch.save({"network_weights": theirs.state_dict()}, folder / "checkpoint_final.pth")
    ours = nnunet_net(plans=str(folder))
    checkpoint.load_into(ours, str(folder / "checkpoint_final.pth"))
    with torch.no_grad():
        logits = ours(torch.ones(1, 2, 16, 16))
        assert logits.shape == (1, 3, 16, 16)
        assert torch.equal(logits, theirs(torch.ones(1, 2, 16, 16))[0])
