"""Scales are chosen on other images than those that the answer is checked on, as long as there are others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from pipeline.records.request import DataSpec, Job
from pipeline.stages.api import Workload
from pipeline.worker import workload
from tests.worker.jobs import EAGER, job


def with_images(folder: Path, size: int, batch_size: int, batches: int) -> Job:
    asked = job(EAGER, folder)
    return replace(asked, data=DataSpec("samples", None, None, size=size, batch_size=batch_size, batches=batches))


def test_no_image_is_among_those_that_are_checked(tmp_path: Path) -> None:
    work = workload.load(with_images(tmp_path, 64, 4, 2), None)
    batches, independent, *_ = work.calibration(10)
    assert independent
    assert [len(batch.first) for batch in batches] == [4, 4, 4]
    checked = torch.cat(work.batches[: work.verified])
    assert not any(torch.equal(image, other) for batch in batches for image in batch.first for other in checked)


def test_where_there_are_no_others_it_is_said(tmp_path: Path) -> None:
    (folder := tmp_path / "images").mkdir()
    Image.fromarray(np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)).save(folder / "one.png")
    data = DataSpec("folder", str(folder), None, size=64, batch_size=2, batches=1)
    asked = replace(with_images(tmp_path, 64, 2, 1), data=data)
    batches, independent, *_ = workload.load(asked, None).calibration(3)
    assert not independent
    assert sum(len(batch.first) for batch in batches) == 4


def test_the_stain_is_judged_on_one_quarter_and_calibrated_on_the_others(tmp_path: Path) -> None:
    data = DataSpec("stain", None, None, size=256, batch_size=2, batches=1)
    found = workload.load(replace(with_images(tmp_path, 64, 2, 1), data=data), None).calibration(3)
    assert found.independent
    assert [picture.rpartition(" at ")[2] for picture in found.pictures] == ["0,0", "0,256", "256,0", "0,0"]


def test_without_a_source_of_more_the_batches_that_are_not_checked_serve() -> None:
    images = [torch.full((2, 3, 4, 4), float(value)) for value in range(4)]
    work = Workload(torch.nn.Identity(), images, torch.device("cpu"), Path(), verified=3)
    assert [batch.first for batch in work.calibration(32).batches] == images[3:]
    assert work.calibration(32).independent
    alone = replace(work, batches=images[:3])
    assert [batch.first for batch in alone.calibration(2).batches] == images[:1]
    assert not alone.calibration(2).independent
