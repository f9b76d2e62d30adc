"""A run's folder as a worker might have left it: a tiny net, a few tiny images, stages that take a moment to build."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from models.checkpoint import digest
from models.unet import UNet
from pipeline.export.bundle import write_sums
from pipeline.export.contract import FILE, Contract, TensorRule, measured_of
from pipeline.inputs.input_contract import InputContract
from pipeline.predict import mask_files
from pipeline.predict.mask_files import InputFile, Look, Writer
from pipeline.records import codec
from pipeline.records.disk import code_digest, write_json
from pipeline.records.request import DataSpec, ModelSpec, RunConfig
from pipeline.records.run_record import RunRecord, StageRecord
from tests.fake_machine import run_record, stage_record, steady_pair
from tests.input_nets import Volumes
from tests.made_up_request import asked
from tests.report import made_up_run as made_up
from tests.stage_files import declared

AFFINE = (1.5, 0.0, 0.0, -7.0, 0.0, 2.5, 0.0, -8.0, 0.0, 0.0, 3.5, -9.0)  # of NIfTI's srow_x, srow_y and srow_z
SIZE, BATCH = 16, 2
Call = Callable[..., tuple[int, str, str]]  # of fixtures in conftest
Told = Callable[..., str]
OPTIONS: dict[str, Any] = {"in_channels": 3, "classes": 3, "base": 4, "depth": 2}


def write_image(path: Path, height: int, width: int, channels: int = 3, seed: int = 0) -> Path:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values[..., 0] if channels == 1 else values).save(path)
    return path


def held(how: int) -> Image.Exif:
    """What a camera notes of how it was held: 1 is upright, 6 is turned by a quarter."""
    exif = Image.Exif()
    exif[0x0112] = how
    return exif


def write_images(folder: Path, number: int, height: int = SIZE, width: int = SIZE, suffix: str = ".png") -> Path:
    """A new folder of images that differ, named by their numbers in three digits."""
    for seed in range(number):
        write_image(folder / f"{seed:03}{suffix}", height, width, seed=seed)
    return folder


def weights(folder: Path, seed: int = 0) -> Path:
    """Of the tiny net, drawn at random, as a user's own; noise is of every class by turns."""
    torch.manual_seed(seed)
    path, net = folder / "weights.safetensors", UNet(**OPTIONS).eval()
    with torch.no_grad():
        net.head.bias -= net(torch.randn(4, 3, SIZE, SIZE)).mean((0, 2, 3))
    save_file(net.state_dict(), path)
    return path


def stages() -> list[StageRecord]:
    """One that wins, the baseline, one that failed, and one for images of one size alone."""
    half, eager, frozen = (
        stage_record(name, steady_pair(ratio, b=name), target=f"pipeline.stages.{name}", options={}, **declared(name))
        for name, ratio in (("half", 2.0), ("eager", 1.0), ("torchscript", 1.0))
    )
    failed = stage_record("fp8", None, status="failed", reason="no such GPU")
    return [eager, half, failed, frozen]


def write_run(folder: Path, contract: InputContract | None = None) -> Path:
    images, checkpoint = folder / "measured", weights(folder)
    contract = contract or InputContract()
    for number in range(4):
        write_image(images / f"{number}.png", SIZE, SIZE, contract.channels, number)
    model = ModelSpec("tiny", "models.unet.UNet", OPTIONS, str(checkpoint))
    data = DataSpec("folder", str(images), None, SIZE, BATCH, 3, contract)
    return write_record(folder, asked(model=model, data=data))


def write_volumes_run(folder: Path, channels: int = 1) -> Path:
    """The folder of a run of a tiny net for volumes, on one of 8 × 8 × 8."""
    scans, checkpoint = folder / "measured", folder / "weights.safetensors"
    scans.mkdir()
    np.save(scans / "a.npy", np.random.default_rng(0).normal(size=(8, 8, 8, channels)).astype(np.float32))
    torch.manual_seed(0)
    save_file(Volumes(channels).state_dict(), checkpoint)
    model = ModelSpec("tiny", "tests.input_nets.Volumes", {"channels": channels}, str(checkpoint))
    data = DataSpec("volume", str(scans), None, 8, 1, 3, InputContract(channels, "zscore", (), (), 1.0))
    return write_record(folder, asked(model=model, data=data))


def write_record(folder: Path, config: RunConfig) -> Path:
    checkpoint = str(config.model.checkpoint)
    run = run_record(stages(), environment=replace(made_up.environment(), device="cpu"))
    reference = replace(made_up.run().reference, weights_sha256=digest(checkpoint))
    record: RunRecord = replace(run, config=config, reference=reference, code_sha256=code_digest())
    codec.save(record, folder / "run")
    return folder / "run"


def save_mask(labels: np.ndarray, mask: Path, source: Path, stage: str, made_by: str, inputs: list[InputFile]) -> None:
    writer = Writer(mask.parent, stage, made_by, "0-of-1", Look(volumes=labels.ndim > 2))
    names = writer.write(labels, mask.name, source, inputs)
    writer.flush()
    mask_files.give_names(mask.parent, names)


LOADER = """
from pathlib import Path
import torch
from models.build import build_model
def load():
    if (Path(__file__).parent / "spoilt").exists():
        raise ValueError("net: not the file that was exported")
    return torch.inference_mode()(build_model({target!r}, {options}, {checkpoint!r}, 0))
"""


def write_bundle(folder: Path, run: Path) -> Path:
    """What pipeline.export leaves, with a loader that builds the net of the made-up run."""
    folder.mkdir()
    record = codec.load(run)
    data, model, eager = record.config.data, record.config.model, record.stages[0]
    batch = [data.batch_size, data.contract.channels, *data.sides]
    logits = [batch[0], 3 if data.name == "folder" else 2, *data.sides]
    contract = Contract(
        "eager", "pipeline.stages.eager", "exported", "net.pt2", TensorRule("image", batch, "float32"),
        TensorRule("logits", logits, "float32"), data.contract, eager.spec.tolerance, True,
        measured_of(record, eager), None, "python -m pipeline",
        image_type="uint8" if data.name == "folder" else "float32",
    )  # fmt: skip
    write_json(codec.to_json(contract), folder / FILE)
    loader = LOADER.format(target=model.target, options=model.options, checkpoint=model.checkpoint)
    (folder / "load.py").write_text(loader)
    write_sums(folder)
    return folder
