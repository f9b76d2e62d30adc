"""A run's stages can be built again on what they were built on: the same inputs, the same calibration."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from pipeline.records.request import DataSpec
from pipeline.records.run_record import Reference
from pipeline.records.run_settings import DataSettings, ModelSettings
from pipeline.stages.api import Workload
from pipeline.worker import workload
from pipeline.worker.recorded_run import recorded_net, recorded_workload
from tests.fake_machine import run_record
from tests.worker.jobs import EAGER, job

CPU = torch.device("cpu")


def both(folder: Path, data: DataSpec) -> tuple[Workload, Workload]:
    """What a worker loads at batch 2, and what the record of its run gives."""
    made = workload.load(asked := replace(job(EAGER, folder), data=data), None)
    model = ModelSettings(asked.model.name, asked.model.target, asked.model.options, asked.model.checkpoint)
    known = DataSettings(data.name, data.path, data.labels, data.size, 2, data.contract, data.label_rules)
    record = run_record([], reference=Reference(1, 1, 1, None, 0.0, 0.0, None, 1, [*made.sources], None))
    settings = replace(record.settings, model=model, data=known)
    record = replace(record, settings=settings, config={"seed": 0, "data": {"batches": data.batches}})
    return made, recorded_workload(record, recorded_net(record), CPU, folder)


def labelled(folder: Path) -> DataSpec:
    """Twenty images, all of them judged, of which six are in rotation."""
    for name in ("images", "labels"):
        (folder / name).mkdir()
        for number in range(20):
            picture = np.full((64, 64, 3) if name == "images" else (64, 64), number % 2, np.uint8)
            Image.fromarray(picture).save(folder / name / f"{number:02}.png")
    return DataSpec("folder", str(folder / "images"), str(folder / "labels"), 64, batch_size=2, batches=3)


def tensors(folder: Path) -> DataSpec:
    """The same as tensors, drawn."""
    given = {"image": torch.rand(20, 3, 64, 64), "right": torch.randint(2, (20, 64, 64))}
    save_file(given, folder / "inputs.safetensors")
    return DataSpec("tensors", str(folder / "inputs.safetensors"), "right", None, batch_size=2, batches=3)


@pytest.mark.parametrize("name", ["two", "six", "labelled", "tensors"])
def test_it_is_given_and_calibrated_on_what_the_run_was(name: str, tmp_path: Path) -> None:
    """Other layers would be kept in fp16 otherwise, and another program timed."""
    stain = DataSpec("stain", None, None, size=64, batch_size=2, batches=2 if name == "two" else 6)
    own = {"labelled": labelled, "tensors": tensors}
    made, again = both(tmp_path, own[name](tmp_path) if name in own else stain)
    assert again.verified == made.verified
    assert len(again.batches) == len(made.batches)
    assert all(torch.equal(*pair) for pair in zip(again.batches, made.batches, strict=True))
    first, second = made.calibration(6), again.calibration(6)
    assert second.pictures == first.pictures
    assert (second.independent, second.left_out) == (True, first.left_out)
    pairs = zip(second.batches, first.batches, strict=True)
    assert all(torch.equal(one.first, other.first) for one, other in pairs)
