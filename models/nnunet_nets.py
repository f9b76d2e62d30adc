"""nnU-Net's networks, by arguments or from the folder of a trained model: its plans.json and dataset.json.

The format is that of nnU-Net 2.2 and later (nnunetv2, documentation/explanation_plans_files.md). Deep supervision is
off, as in inference: the answer is the logits of the full size.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from models.build import class_of
from models.library_nets import imported, made, net_named
from pipeline.errors import ModelError, nearest

ARCHITECTURES = "dynamic_network_architectures.architectures.unet"
PACKAGE = "dynamic-network-architectures"
PLANS, DATASET = "plans.json", "dataset.json"
# nnU-Net's plan without a dataset: images of 512×512 or volumes of 128³, halved down to 8 or 4, with channels doubled
# up to the limit of that dimension.
DIMENSIONS = {"2d": 2, "3d_fullres": 3}
WIDTHS = {2: [32, 64, 128, 256, 512, 512, 512], 3: [32, 64, 128, 256, 320, 320]}
BLOCKS = [1, 3, 4, 6, 6, 6, 6]  # blocks in the stages of a residual network
MOST_INHERITED = 20  # configurations that build on each other; more is a cycle
BEFORE_2_4 = {  # names in plans without "architecture", and the class's arguments
    "conv_kernel_sizes": "kernel_sizes",
    "pool_op_kernel_sizes": "strides",
    "n_conv_per_stage_decoder": "n_conv_per_stage_decoder",
}


def nnunet_net(
    net: str = "PlainConvUNet", plans: str | None = None, configuration: str = "2d", input_channels: int = 3,
    num_classes: int = 2, **options: object,
) -> nn.Module:  # fmt: skip
    """Make one of nnU-Net's networks, from images [batch, input_channels, height, width] to logits of `num_classes`.

    Args:
        net: PlainConvUNet or ResidualEncoderUNet.
        plans: the folder of a trained model, whose plans.json and dataset.json decide all but the configuration.
        configuration: of the plans, such as "2d"; without plans, "2d" or "3d_fullres".
        input_channels: of the images.
        num_classes: of the logits.
        options: of the class; defaults are nnU-Net's for images of 512×512 or volumes of 128×128×128.
    """
    library = imported(ARCHITECTURES, PACKAGE, "nnunet")
    if plans is None:
        asked = {key: value for key, value in options.items() if value is not None}
        given = {**defaults(net, configuration), **asked}
        sizes = {"input_channels": input_channels, "num_classes": num_classes}
    else:
        net, given = planned(Path(plans), configuration)
        sizes = described_sizes(Path(plans) / DATASET)
    return made(net_named(net, library, "net"), {**sizes, **given, "deep_supervision": False})


def defaults(net: str, configuration: str) -> dict[str, Any]:
    """Return nnU-Net's plan for a configuration: six or seven stages, instance norm, leaky ReLU."""
    if configuration not in DIMENSIONS:
        meant = nearest(configuration, DIMENSIONS)
        raise ModelError(f"model.options.configuration={configuration}: without model.options.plans, {meant}")
    dimensions = DIMENSIONS[configuration]
    widths = WIDTHS[dimensions]
    stages = {"n_stages": len(widths), "features_per_stage": widths, "strides": [1] + [2] * (len(widths) - 1)}
    blocks: dict[str, Any] = {"n_conv_per_stage": 2, "n_conv_per_stage_decoder": 2}
    if net == "ResidualEncoderUNet":
        blocks = {"n_blocks_per_stage": BLOCKS[: len(widths)], "n_conv_per_stage_decoder": 1}
    return {**stages, "kernel_sizes": 3, **blocks, **layers(dimensions)}


def layers(dimensions: int) -> dict[str, object]:
    """Return nnU-Net's layers: convolutions with a bias, instance norm, leaky ReLU, no dropout."""
    norm = {"norm_op": getattr(nn, f"InstanceNorm{dimensions}d"), "norm_op_kwargs": {"eps": 1e-5, "affine": True}}
    convolution = {"conv_op": getattr(nn, f"Conv{dimensions}d"), "conv_bias": True}
    return {**convolution, **norm, "nonlin": nn.LeakyReLU, "nonlin_kwargs": {"inplace": True}}


def planned(folder: Path, configuration: str) -> tuple[str, dict[str, object]]:
    """Return the network's class and its arguments, from the plans of a trained model."""
    path = folder / PLANS
    known = part(document(path), "configurations", path)
    settings = inherited(known, configuration, path)
    if first := settings.get("previous_stage"):
        others = ", ".join(name for name in known if name != configuration)
        raise ModelError(
            f"model.options.configuration={configuration}: the second network of a cascade, which takes "
            f"the labels that {first} gave beside the images, and no images here have them; {path} also has {others}"
        )
    if "architecture" not in settings:
        return before_2_4(settings, path)
    architecture = part(settings, "architecture", path)
    name = str(architecture.get("network_class_name", ""))
    package, _, net = name.rpartition(".")
    if package != ARCHITECTURES:
        raise ModelError(
            f"{path}: its network is {name}; supported are those of {ARCHITECTURES}: name it by model=custom"
        )
    arguments = dict(part(architecture, "arch_kwargs", path))
    imported_by_name = [key for key in architecture.get("_kw_requires_import", ()) if arguments.get(key) is not None]
    return net, arguments | {key: class_of(arguments[key], f"{path}: {key}") for key in imported_by_name}


def inherited(known: Mapping[str, object], configuration: str, path: Path, depth: int = 0) -> dict[str, Any]:
    """Return a configuration with what it builds on; raise ModelError if there is none, or they form a cycle."""
    if configuration not in known:
        names = ", ".join(map(str, known))
        raise ModelError(f"model.options.configuration={configuration}: not in {path}; it has {names}")
    if depth > MOST_INHERITED:
        raise ModelError(f"{path}: its configuration {configuration} builds on itself")
    own = dict(part(known, configuration, path))
    above = own.get("inherits_from")
    return {**inherited(known, above, path, depth + 1), **own} if above else own


def before_2_4(found: Mapping[str, Any], path: Path) -> tuple[str, dict[str, object]]:
    """Return class and arguments from plans of nnU-Net before 2.4; raise ModelError if a number is missing."""
    missing = [key for key in (*BEFORE_2_4, "n_conv_per_stage_encoder", "UNet_base_num_features") if key not in found]
    if missing:
        raise ModelError(f"{path}: neither 'architecture' nor {missing[0]!r} in it; it is no plans.json of nnU-Net 2")
    net = str(found.get("UNet_class_name", "PlainConvUNet"))
    stages = len(found["conv_kernel_sizes"])
    widest, base = found.get("unet_max_num_features", 512), found["UNet_base_num_features"]
    depth = "n_blocks_per_stage" if net == "ResidualEncoderUNet" else "n_conv_per_stage"
    return net, {
        "n_stages": stages,
        "features_per_stage": [min(base * 2**stage, widest) for stage in range(stages)],
        depth: found["n_conv_per_stage_encoder"],
        **{ours: found[theirs] for theirs, ours in BEFORE_2_4.items()},
        **layers(len(found["conv_kernel_sizes"][0])),
    }


def described_sizes(path: Path) -> dict[str, int]:
    """Return the channels of images and logits that a dataset.json describes; regions have no logit for background."""
    dataset = document(path)
    channels = dataset.get("channel_names") or dataset.get("modality")
    labels = {name: value for name, value in part(dataset, "labels", path).items() if name != "ignore"}
    if not channels:
        raise ModelError(f"{path}: no channel_names in it; it is no dataset.json of nnU-Net")
    regions = any(isinstance(value, list) and len(value) > 1 for value in labels.values())
    background = [name for name, value in labels.items() if value in (0, "0", [0])]
    return {"input_channels": len(channels), "num_classes": len(labels) - (len(background) if regions else 0)}


def document(path: Path) -> Mapping[str, Any]:
    """Read a file's JSON object; raise ModelError if there is no such file, or it is no JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        said = getattr(error, "strerror", None) or error
        remedy = f"name the folder that has {PLANS} and {DATASET}"
        raise ModelError(f"model.options.plans={path.parent}: {path.name}: {said}; {remedy}") from None
    if not isinstance(content, Mapping):
        raise ModelError(f"{path}: a {type(content).__name__}, no key: value pairs")
    return content


def part(whole: Mapping[str, object], key: str, path: Path) -> Mapping[str, Any]:
    """Return the object under a key; raise ModelError if the key is missing, or its value is no object."""
    value = whole.get(key)
    if not isinstance(value, Mapping):
        raise ModelError(f"{path}: no {key!r} in it; it is no file of nnU-Net 2")
    return value
