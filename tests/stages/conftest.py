"""One net on real images for all stages, and a watch on the state that a stage leaves in its process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from models.build import build_model
from models.samples import load_dataset, to_batch
from pipeline.stages.api import Workload

WEIGHTS = Path(__file__).resolve().parents[2] / "models" / "weights" / "unet_small.safetensors"
SIZE = 96


def lasting_state() -> dict[str, object]:
    """What a stage must never change: the stages after it in one process, and the checks, rely on it."""
    return {
        "default dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "threads": torch.get_num_threads(),
        "autocast on the CPU": torch.is_autocast_enabled("cpu"),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "matmul precision of bf16": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "folder": Path.cwd(),
    }


@pytest.fixture(autouse=True)
def process_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stages own the switches of their process: put those back, and fail where more than those has changed."""
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    switches = [
        (torch.backends.cuda.matmul, "allow_tf32"),
        (torch.backends.cudnn, "allow_tf32"),
        (torch.backends.cudnn, "benchmark"),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name in switches]
    before = lasting_state()
    yield
    for owner, name, value in kept:
        setattr(owner, name, value)
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        os.environ.pop(variable, None)
    assert lasting_state() == before


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    """The trained small net and three real images."""
    options = {"base": 16}
    dataset = load_dataset("samples", None, None, SIZE, 3)
    return Workload(
        model=build_model("models.unet.UNet", options, str(WEIGHTS), seed=0),
        batches=list(to_batch(dataset.images).split(1)),
        device=torch.device("cpu"),
        folder=tmp_path / "stage",
        verified=3,
    )
