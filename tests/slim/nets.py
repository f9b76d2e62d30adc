"""Networks whose channels meet in every way that slices follow, ones that can't be sliced, and records of runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.checkpoint import digest
from pipeline.records import codec
from pipeline.records.request import DataSpec, ModelSpec
from pipeline.records.run_record import Reference, RunRecord
from tests.export.recorded import MACHINE, stage
from tests.made_up_request import asked


def run_of(folder: Path, model: ModelSpec, data: DataSpec, **fields: Any) -> Path:
    """Write the record of a run that eager won, and return its folder."""
    folder.mkdir(exist_ok=True)
    known = Reference(1, 1, 1, model.weights and digest(model.weights), 0.0, 0.0, None, 1, [], None)
    command, config = "python -m pipeline model=unet_small stage=eager", asked(model=model, data=data, **fields)
    record = RunRecord("2026-01-01T00:00:00+00:00", command, config, MACHINE, reference=known, stages=[stage("eager")])
    codec.save(replace(record, finished=True, winner="eager"), folder)
    return folder


class Meeting(nn.Module):
    """A sum, a concatenation, a convolution for each channel, a gate and an upsampling."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.norm = nn.BatchNorm2d(32)
        self.each = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.inner = nn.Sequential(nn.Conv2d(32, 64, 1), nn.PReLU(64), nn.Conv2d(64, 32, 1))
        self.gate = nn.Conv2d(32, 32, 1)
        self.down = nn.Conv2d(32, 48, 3, 2, 1)
        self.up = nn.ConvTranspose2d(48, 24, 2, 2)
        self.scale = nn.Parameter(torch.rand(1, 24, 1, 1))
        self.mix = nn.Conv2d(56, 16, 1)
        self.several = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.head = nn.Conv2d(16, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        found = functional.relu(self.norm(self.first(image)))
        found = found + self.inner(self.each(found))
        found = found * torch.sigmoid(self.gate(functional.adaptive_avg_pool2d(found, 1)))
        return self.head(
            self.several(self.mix(torch.cat([found, self.scale * self.up(functional.relu(self.down(found)))], 1)))
        )


class Normed(nn.Module):
    """Weights that the network computes, which no file holds by their channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 32, 3, padding=1))
        self.head = nn.Conv2d(32, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(functional.relu(self.first(image)))


class Turned(nn.Module):
    """Channels become pixels and back, which no slice follows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 32, 1), nn.Conv2d(32, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        found = self.first(image).flatten(2).transpose(1, 2)
        return self.head(found.softmax(1).transpose(1, 2).unflatten(2, image.shape[2:]))
