"""The requested network: a class with options and weights, a library's folder, or a network in a file."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from models import weights_file
from pipeline.command_line import tell
from pipeline.config.conversion import converted
from pipeline.config.data_request import TENSORS, VOLUME, check_there
from pipeline.config.request_error import RequestError
from pipeline.config.stage_options import check_options, signature_of_net
from pipeline.records.request import DataSpec, ModelSpec
from pipeline.targets import hidden, refusal

EXPORTED, ONNX = ".pt2", ".onnx"  # a network as torch.export and ONNX write it; TorchScript has any other suffix
OWN_NETS, CHANNELS = "models.", "in_channels"
FILE, CUSTOM, SMP, DIFFUSERS, MONAI, NNUNET = "file", "custom", "smp", "diffusers", "monai", "nnunet"
CONFIG = "config.json"  # of save_pretrained
CONFIG_OF = {SMP: [CONFIG], DIFFUSERS: [CONFIG], MONAI: ["configs/inference.json", "configs/inference.yaml"]}
UNET2D = "UNet2DModel"  # the class of model=diffusers
COMPUTED = ("$", "@")  # first letters of a bundle's values that are code or refer to others


def read_model(value: Mapping[str, object]) -> ModelSpec:
    """Return the requested network."""
    if value.get("file"):  # which is complete; naming a file consents to running what it holds
        model = converted({**value, "target": "", "options": {}, "checkpoint": None}, ModelSpec, "model")
        for key in ("target", "options", "checkpoint"):
            if value.get(key):
                raise RequestError(f"model.{key}: model.file={model.file} is a network with its weights; leave one out")
        check_there("model.file", str(model.file), "file")
        file = Path(str(model.file))
        if file.suffix not in (EXPORTED, ONNX) and not weights_file.is_torchscript(file):
            raise RequestError(
                f"model.file={model.file}: not a {EXPORTED} file, TorchScript or ONNX; "
                "torch.export.save(torch.export.export(net.eval(), (batch,)).run_decompositions({}), FILE) writes one; "
                f"weights, or a pickled network, need the class: model=custom model.target=… model.checkpoint={file}"
            )
        return model
    if value.get("name") == FILE:
        raise RequestError("model.file: name the file of your network, such as model.file=net.pt2, net.ts or net.onnx")
    if not value.get("target"):
        raise RequestError("model.target: name the class of your network, such as my_package.MyNet, or a function")
    empty = ("checkpoint", "checkpoint_key", "output", "trained", "upsample_logits")
    given = {key: None if key in empty and part == "" else part for key, part in value.items()}
    model = converted(given, ModelSpec, "model")
    check_target("model.target", model.target, "my_package.MyNet")
    if model.checkpoint_key and not model.checkpoint:
        raise RequestError(f"model.checkpoint_key={model.checkpoint_key}: it goes with model.checkpoint=FILE")
    if model.checkpoint and weights_file.find(model.checkpoint) != Path(model.checkpoint):
        model = described_in(Path(model.checkpoint), model)
    if not (model.checkpoint and Path(model.checkpoint).is_dir() and model.name == CUSTOM):
        check_options(model.options, signature_of_net(model.target), "model.options", model.target)
    return model


def described_in(folder: Path, model: ModelSpec) -> ModelSpec:
    """Return the network with the options that its library wrote into the folder of the weights."""
    if model.name == NNUNET and model.options.get("plans") is None and (folder.parent / "plans.json").is_file():
        tell(f"note: {folder.parent}/plans.json sets the network's options")
        return replace(model, options={**model.options, "plans": str(folder.parent)})
    path = next((folder / name for name in CONFIG_OF.get(model.name, ()) if (folder / name).is_file()), None)
    if path is None:
        return model
    found = document(path)
    cls = str(found.get({SMP: "_model_class", DIFFUSERS: "_class_name"}.get(model.name, "_target_")))
    if model.name == MONAI:
        found = found.get("network_def", {})
        cls = str(found.get("_target_")).rpartition(".")[2]
        if code := next((key for key, part in found.items() if str(part).startswith(COMPUTED)), ""):
            raise RequestError(f"{path}: network_def.{code} is computed by code, which is not run; type model.options")
    if model.name == DIFFUSERS and cls != UNET2D:
        raise RequestError(
            f"model=diffusers: {path} describes a {cls}; name it: model=custom model.target=diffusers.{cls} "
            f"model.checkpoint={folder}"
        )
    options = {key: part for key, part in found.items() if not key.startswith("_")}
    of_class: dict[str, dict[str, Any]] = {SMP: {"architecture": cls, "encoder_weights": None}, MONAI: {"net": cls}}
    options |= of_class.get(model.name, {})
    typed = ((key, part, model.options.get(key)) for key, part in options.items())
    other = [f"{key}={part}, not {own}" for key, part, own in typed if own not in (None, part)]
    tell(f"note: {path} sets the network's options{': ' * bool(other)}{'; '.join(other)}")
    kept = {key: part for key, part in model.options.items() if model.name != MONAI}
    return replace(model, options={**kept, **options})


def document(path: Path) -> dict[str, Any]:
    """Read a file's mapping, of JSON or YAML; raise RequestError if it can't be read, or holds none."""
    try:
        found = (json.loads if path.suffix == ".json" else yaml.safe_load)(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise RequestError(f"{path}: can't be read ({type(error).__name__})") from None
    if not isinstance(found, dict):
        raise RequestError(f"{path}: no mapping of keys to values")
    return found


def check_net(model: ModelSpec, data: DataSpec) -> None:
    """Raise if the request, or the header of the weights' file, rules the network out."""
    if model.name == CUSTOM and (theirs := hidden(model.target)):
        raise RequestError(f"model.target={model.target}: also the name of {theirs}; rename that file")
    if model.checkpoint:
        weights_file.check(model.checkpoint)
    taken, given = model.options.get(CHANNELS), data.contract.channels
    if model.target.startswith(OWN_NETS) and data.name not in (TENSORS, VOLUME) and taken not in (None, given):
        raise RequestError(f"model.options.{CHANNELS}={taken}: images have data.channels={given}; set one to the other")


def check_target(key: str, target: str, example: str) -> None:
    """Raise RequestError if `pipeline.targets.refusal` refuses the name; nothing is imported."""
    if why := refusal(target):
        raise RequestError(f"{key}={target}: {why}; name {example}")
