"""What a stage works on: the net, real images on the device, and the seed that orders them."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from models.build import build_model
from models.samples import load_dataset, to_batch
from pipeline.config.schema import SCRATCH, Job

VERIFIED_IMAGES = 8  # enough for shares of pixels; all stages see the same
MOST_BATCHES = 64  # of a rotation, however large the cache


@dataclass(frozen=True)
class Workload:
    """The net and its images; a stage reads it and never changes it.

    Attributes:
        model: the net in fp32, in eval mode, on `device`.
        batches: the rotation, each [batch, channels, height, width], fp32, contiguous, on `device`; all of one shape.
        device: where the stage is to run.
        folder: the stage's own folder, for its artefacts and caches.
        seed: of everything drawn at random.
        labels: [images, height, width] of the images in the order of `batches`, uint8, 255 where not labelled.
        images: [images, height, width, 3] as they were before normalisation, uint8.
        sources: where each image comes from.
        verified: how many of the batches, from the first, the answer is checked on.
        earlier: caches that another process of the same stage left, to build from; None for a cold build.
    """

    model: nn.Module
    batches: list[Tensor]
    device: torch.device
    folder: Path
    seed: int = 0
    labels: np.ndarray | None = None
    images: np.ndarray | None = None
    sources: tuple[str, ...] = ()
    verified: int = 1
    earlier: Path | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Batch, channels, height, width."""
        batch, channels, height, width = self.batches[0].shape
        return batch, channels, height, width

    @property
    def caches(self) -> Path:
        """Where a stage keeps what it compiles with, until the run ends."""
        return self.earlier or self.folder / SCRATCH


def load(job: Job, cache_bytes: int | None) -> Workload:
    """The job's net and images on its device.

    Args:
        job: names them.
        cache_bytes: of the device's last cache; the rotation is at least twice as large, so no input is found there.

    Raises:
        models.errors.InputError: a file, a class or a checkpoint is not what it should be; one line.
    """
    device = torch.device(job.device)
    torch.manual_seed(job.seed)
    model = build_model(job.model.target, job.model.options, job.model.checkpoint, job.seed).to(device)
    data, batch_size = job.data, job.data.batch_size
    first = load_dataset(data.name, data.path, data.labels, data.size, batch_size)
    batch_bytes = 4 * first.images.size
    count = min(MOST_BATCHES, max(data.batches, math.ceil(2 * (cache_bytes or 0) / batch_bytes)))
    dataset = load_dataset(data.name, data.path, data.labels, data.size, batch_size * count)
    batches = list(to_batch(dataset.images).to(device).split(batch_size))
    return Workload(
        model=model,
        batches=batches,
        device=device,
        folder=Path(job.folder),
        seed=job.seed,
        labels=dataset.labels,
        images=dataset.images,
        sources=tuple(dataset.sources),
        verified=min(count, max(data.batches, math.ceil(VERIFIED_IMAGES / batch_size))),
        earlier=Path(job.earlier) if job.earlier else None,
    )
