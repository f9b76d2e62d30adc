"""A net is looked at before any image is read; what a tiny image can't show is left to the run's own size."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.errors import ImageError, ModelError
from pipeline.records.request import DataSpec, Job
from pipeline.stages.api import StageError
from pipeline.worker import run_stage, workload
from pipeline.worker.net_contract import first_look
from tests.worker.jobs import EAGER, Recorder, job

FOLDER = DataSpec("folder", "no/such/folder", None, size=96, batch_size=2, batches=3)


class Head(nn.Module):
    """A convolution, and what is made of its logits; it keeps the size of the first image that it sees."""

    def __init__(self, then: Callable[[Tensor], object] = lambda logits: logits) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 2, 1)
        self.then = then
        self.seen = 0

    def forward(self, image: Tensor) -> Any:
        self.seen = self.seen or image.shape[-1]
        return self.then(self.head(image))


def asked(folder: Path, size: int | None = 96) -> Job:
    return replace(job(EAGER, folder, "reference"), data=replace(FOLDER, size=size))


def only(side: int) -> Head:
    def check(logits: Tensor) -> Tensor:
        if logits.shape[-1] != side:
            raise ValueError(f"made for {side} pixels")
        return logits

    return Head(check)


def test_a_net_is_refused_before_its_images_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "net_of", lambda _: Head(lambda y: y[..., ::2, ::2]))
    with pytest.raises(ModelError, match=r"Head answers \[2, 2, 48, 48\] to images \[2, 3, 96, 96\]"):
        run_stage.run_stage(asked(tmp_path), Recorder())
    monkeypatch.setattr(workload, "net_of", lambda _: Head())
    with pytest.raises((ImageError, StageError, OSError)):
        run_stage.run_stage(asked(tmp_path), Recorder())


def test_a_net_for_one_size_is_judged_by_that(tmp_path: Path) -> None:
    """A tiny image that it refuses is no fault; and where the images' size isn't known, nothing is said yet."""
    first_look(only(96), asked(tmp_path))
    with pytest.raises(ModelError, match="made for 80 pixels"):
        first_look(only(80), asked(tmp_path))
    first_look(only(80), asked(tmp_path, size=None))


def test_nothing_is_left_in_the_net_nor_drawn_from_chance(tmp_path: Path) -> None:
    """It looks at a copy; what is drawn afterwards is what it would have been."""
    net, state = Head(lambda y: y + torch.rand_like(y)), torch.get_rng_state()
    first_look(net, asked(tmp_path))
    assert net.seen == 0
    assert torch.equal(torch.get_rng_state(), state)


def test_a_shortage_is_left_to_who_tells_it_better(tmp_path: Path) -> None:
    tried = []

    def starved(logits: Tensor) -> Tensor:
        tried.append(logits.shape[-1])
        raise torch.OutOfMemoryError("CUDA out of memory")

    first_look(Head(starved), asked(tmp_path))
    assert tried == [64, 96]
