"""The arguments by which networks of several libraries are made narrower, and their other forms."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pipeline.records.request import ModelSpec
from pipeline.slim.command import width_of
from pipeline.slim.student import placed
from pipeline.slim.widths import SLICED, Full, other_shapes, parameters
from pipeline.worker.workload import net_of_spec

IMAGE = (1, 3, 64, 64)
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
    spec, image = ModelSpec("full", target, options), torch.randn(IMAGE)
    full = Full(spec, net_of_spec(spec, 0), [image], 0)
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
