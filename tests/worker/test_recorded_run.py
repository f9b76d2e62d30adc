"""A run's stages can be built again on what they were built on: the same inputs, the same calibration."""

from dataclasses import replace
from pathlib import Path

import torch

from pipeline.records.run_record import Reference
from pipeline.records.run_settings import DataSettings, ModelSettings
from pipeline.stages.api import Workload
from pipeline.worker import workload
from pipeline.worker.recorded_run import recorded_net, recorded_workload
from tests.fake_machine import run_record
from tests.worker.jobs import EAGER, job

CPU = torch.device("cpu")


def both(folder: Path, batches: int) -> tuple[Workload, Workload]:
    """What a worker loads for the stain at batch 2, and what the record of its run gives."""
    asked = job(EAGER, folder)
    data = replace(asked.data, name="stain", size=64, batches=batches)
    made = workload.load(asked := replace(asked, data=data), None)
    model = ModelSettings(asked.model.name, asked.model.target, asked.model.options, asked.model.checkpoint)
    known = DataSettings("stain", image_size=64, batch_size=2, contract=data.contract, label_rules=data.label_rules)
    images = list(made.sources[: 2 * len(made.batches)])
    record = run_record([], reference=Reference(1, 1, 1, None, 0.0, 0.0, None, 1, images, None))
    settings = replace(record.settings, model=model, data=known)
    record = replace(record, settings=settings, config={"seed": 0, "data": {"batches": batches}})
    return made, recorded_workload(record, recorded_net(record), CPU, folder)


def test_the_rotation_and_what_is_checked_are_the_same(tmp_path: Path) -> None:
    for batches in (2, 6):
        made, again = both(tmp_path, batches)
        assert again.verified == made.verified
        assert [torch.equal(*pair) for pair in zip(again.batches, made.batches, strict=True)] == [True] * batches


def test_it_is_calibrated_on_the_same_pictures(tmp_path: Path) -> None:
    """Other layers would be kept in fp16 otherwise, and another program timed."""
    made, again = (work.calibration(6) for work in both(tmp_path, 2))
    assert again.pictures == made.pictures
    assert again.independent
    assert all(torch.equal(*pair) for pair in zip(again.batches, made.batches, strict=True))
