"""One net on real images for all stages, which may set the switches of their process."""

from pathlib import Path

import pytest
import torch

from models.build import build_model
from models.image_batches import to_batch
from pipeline.inputs.datasets import dataset_loader
from pipeline.stages.api import Workload
from tests.process_state import process_switches

__all__ = ["process_switches"]  # a fixture
WEIGHTS = Path(__file__).resolve().parents[2] / "models" / "weights" / "unet_small.safetensors"
SIZE = 96


def small_net(folder: Path) -> Workload:
    """The trained small net and three real images."""
    options = {"base": 16}
    dataset = dataset_loader("samples", None, None, SIZE)(3)
    return Workload(
        model=build_model("models.unet.UNet", options, str(WEIGHTS), seed=0),
        batches=list(to_batch(dataset.images).split(1)),
        device=torch.device("cpu"),
        folder=folder / "stage",
        verified=3,
    )


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    """`small_net`, in a folder of this test's own."""
    return small_net(tmp_path)
