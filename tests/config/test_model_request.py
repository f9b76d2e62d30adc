"""The network of a request: options from a library's folder, weights by a key, and what is refused before torch."""

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.model_request import read_model
from pipeline.config.request_error import RequestError
from pipeline.errors import CheckpointError

SMP = {"_model_class": "FPN", "encoder_name": "resnet18", "classes": 3, "encoder_weights": "imagenet"}
LATENTS = {"_class_name": "UNet2DModel", "in_channels": 4, "_diffusers_version": "0"}
DEFINITION = {"_target_": "SegResNet", "spatial_dims": 3, "in_channels": 1}
FILES: dict[str, dict[str, object]] = {
    "smp": {"config.json": SMP, "model.safetensors": ""},
    "diffusers": {"config.json": LATENTS, "diffusion_pytorch_model.safetensors": ""},
    "monai": {"configs/inference.json": {"network_def": DEFINITION}, "models/model.pt": ""},
    "nnunet": {"../plans.json": {}, "checkpoint_final.pth": ""},
}
TAKEN: dict[str, dict[str, Any]] = {
    "smp": {"architecture": "FPN", "encoder_name": "resnet18", "classes": 3, "encoder_weights": None},
    "diffusers": {"timestep": 10, "in_channels": 4},
    "monai": {"net": "SegResNet", "spatial_dims": 3, "in_channels": 1},
    "nnunet": {"configuration": "2d"},
}
TARGETS = {"nnunet": "models.nnunet_nets.nnunet_net"}
DEFAULTS: dict[str, dict[str, object]] = {"diffusers": {"timestep": 10}, "nnunet": {"configuration": "2d"}}


def folder_of(place: Path, files: dict[str, object]) -> Path:
    folder = place / "saved"
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def asked(name: str, folder: Path) -> dict[str, object]:
    target = TARGETS.get(name, f"models.library_nets.{name}_net")
    return {"name": name, "target": target, "options": DEFAULTS.get(name, {}), "checkpoint": str(folder)}


@pytest.mark.parametrize("name", FILES)
def test_a_library_s_folder_sets_the_options(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(tmp_path, FILES[name])
    model = read_model(asked(name, folder))
    plans = {"plans": str(tmp_path / "saved" / "..")} if name == "nnunet" else {}
    found = {**model.options, **({"plans": plans["plans"]} if plans else {})}
    assert found == {**TAKEN[name], **plans}
    assert model.checkpoint == str(folder)
    assert "sets the network's options" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "files", "said"),
    [
        (
            "diffusers",
            {**FILES["diffusers"], "config.json": {"_class_name": "AutoencoderKL"}},
            "model.target=diffusers.AutoencoderKL",
        ),
        (
            "monai",
            {**FILES["monai"], "configs/inference.json": {"network_def": {"channels": "$[1]"}}},
            "network_def.channels is computed by code",
        ),
        ("smp", {**FILES["smp"], "config.json": "{"}, "config.json: can't be read"),
        ("smp", {**FILES["smp"], "config.json": "[1]"}, "config.json: no mapping of keys to values"),
    ],
)
def test_options_that_are_another_network_s_are_refused(
    name: str, files: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(RequestError) as refused:
        read_model(asked(name, folder_of(tmp_path, files)))
    assert said in str(refused.value)


def test_a_folder_without_weights_names_the_files_in_it(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, {"epochs/last.ckpt": "", "epochs/best.ckpt": ""})
    named = " or ".join(f"model.checkpoint={folder}/epochs/{name}.ckpt" for name in ("best", "last"))
    with pytest.raises(CheckpointError) as refused:
        read_model(asked("smp", folder))
    assert str(refused.value).endswith(f"is a folder, not a file of weights; name the file in it: {named}")
