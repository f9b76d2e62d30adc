"""Loads what a stage works on: the net and real images, on the device."""

import math
from functools import partial
from pathlib import Path

import torch

from models.build import build_model
from models.samples import load_dataset, to_batch
from pipeline.config.schema import Job
from pipeline.stages.api import CalibrationImages, Workload

VERIFIED_IMAGES = 8  # enough for shares of pixels; all stages see the same
MOST_BATCHES = 64  # of a rotation, however large the cache


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
    verified = min(count, max(data.batches, math.ceil(VERIFIED_IMAGES / batch_size)))
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
        verified=verified,
        earlier=Path(job.earlier) if job.earlier else None,
        spare=partial(calibration_images, job, device, verified * batch_size),
    )


def calibration_images(job: Job, device: torch.device, checked: int, wanted: int) -> CalibrationImages:
    """Images beyond those that are checked, as far as there are windows of their own; else such windows rolled.

    Args:
        job: names the images.
        device: where they are to be.
        checked: how many images, from the first, the answer is checked on.
        wanted: how many more; rounded up to whole batches.
    """
    data, size = job.data, job.data.batch_size
    count = math.ceil(wanted / size) * size
    dataset = load_dataset(data.name, data.path, data.labels, data.size, checked + count)
    own = (dataset.distinct - checked) // size * size
    chosen = dataset.images[checked:][: own if own > 0 else count]
    return CalibrationImages(list(to_batch(chosen).to(device).split(size)), independent=own > 0)
