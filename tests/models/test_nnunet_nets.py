"""nnU-Net's plans: what a trained model's folder says of its net."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from models import checkpoint
from models.nnunet_nets import ARCHITECTURES, defaults, described_sizes, nnunet_net, planned
from pipeline.errors import CheckpointError, ModelError

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
