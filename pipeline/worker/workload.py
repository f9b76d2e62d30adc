"""Loads what a stage works on: the net and real images, on the device."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from models.build import build_model
from models.image_batches import to_batch
from models.model_output import with_output
from pipeline.compiler.batch import Batch, batched
from pipeline.config.data_request import (
    BYTES_OF_A_VALUE,
    BYTES_OF_A_VOXEL,
    GIB,
    OWN_IMAGES,
    TENSORS,
    VOLUME,
    words_for_kind,
)
from pipeline.devices.host import memory_bytes
from pipeline.errors import ImageError, ModelError
from pipeline.inputs.datasets import CALIBRATED_ON, Dataset, load_dataset, values_in, window
from pipeline.inputs.volume_files import values_in_volumes
from pipeline.records.request import DataSpec, Job, ModelSpec
from pipeline.stages.api import CalibrationImages, Workload
from pipeline.worker.calibration_share import share_of
from pipeline.worker.guard import changes, process_state
from pipeline.worker.rotation_size import batches_of
from pipeline.worker.tensor_workload import workload_of_tensors


def no_look(_model: nn.Module, _job: Job) -> None:
    """Do nothing: the default for `look`."""


def load(job: Job, cache_bytes: int | None, look: Callable[[nn.Module, Job], None] = no_look) -> Workload:
    """The job's net and images on its device.

    Args:
        job: names them.
        cache_bytes: of the device's last cache; the rotation is at least twice as large, so no input is found there.
        look: is given the net before any image is read.

    Raises:
        pipeline.errors.InputError: a file, a class or a checkpoint is not what it should be; one line.
    """
    device, data = torch.device(job.device), job.data
    torch.manual_seed(job.seed)
    model = net_of(job)
    model.to(device)  # its own `to` may forget to return it
    look(model, job)
    found = workload_on(model, data, job.task.has_masks, device, Path(job.folder), cache_bytes)
    return replace(found, seed=job.seed, earlier=Path(job.earlier) if job.earlier else None)


def workload_on(
    model: nn.Module, data: DataSpec, has_masks: bool, device: torch.device, folder: Path, cache_bytes: int | None
) -> Workload:
    """A net, which is on the device, with all that its stages are timed and judged on.

    Args:
        model: in fp32.
        data: names the images, or tensors.
        has_masks: whether its answers are classes.
        device: where the batches are to be.
        folder: for what a stage writes.
        cache_bytes: as of `load`, and so are the errors.
    """
    if data.name == TENSORS:
        return workload_of_tensors(model, data, has_masks, device, folder, cache_bytes)
    batch_size = data.batch_size
    check_folder(data, memory_bytes())
    count, verified = batches_of(data, 4 * (first := images_of(data, batch_size)).images.size, cache_bytes)
    judged = max(verified * batch_size, labelled_images(data, first))
    dataset = protected(images_of(data, max(batch_size * count, judged)))
    return Workload(
        model=model,
        batches=in_batches(dataset.images[: batch_size * count], data, device),
        device=device,
        folder=folder,
        labels=dataset.labels if has_masks else None,  # masks are no truth for values
        images=dataset.images,
        contract=data.contract,
        sources=tuple(dataset.sources),
        distinct=dataset.distinct,
        pictures=tuple(dataset.pictures),
        left_out=tuple(dataset.left_out),
        verified=verified,
        judged=judged,
        spare=partial(calibration_images, data, device, verified),
        has_masks=has_masks,
    )


def protected(dataset: Dataset) -> Dataset:
    """The images and labels, into which nobody may write from now on: a stage is judged by them."""
    for part in (dataset.images, dataset.labels):
        if part is not None:
            part.setflags(write=False)
    return dataset


def net_of(job: Job) -> nn.Module:
    """The job's net, on the CPU; errors as of `build_model`, and where its weights take more than the memory."""
    return net_of_spec(job.model, job.seed)


def net_of_spec(asked: ModelSpec, seed: int) -> nn.Module:
    """A net as a request or a record names it, on the CPU; errors as of `net_of`.

    Raises:
        ModelError: besides, what all stages rest on isn't as it was, such as torch's default dtype or the folder.
    """
    if asked.file:
        from pipeline.worker.net_file import net_of_file  # which imports Inductor, as its check knows all operations

        return with_output(net_of_file(asked.file, memory_bytes()), asked.output)
    before = process_state()
    model = build_model(asked.target, asked.options, asked.checkpoint, seed, asked.output)
    for name, (was, now) in changes(before, process_state()).items():
        raise ModelError(
            f"model.target: {asked.target} changes the process where it is imported or made: {name} was {was}, is "
            f"{now}; leave that to the program that uses it"
        )
    return model


def images_of(data: DataSpec, count: int) -> Dataset:
    """So many images of those that the job names; errors as of `load_dataset`."""
    size = window(data.name, data.size, data.depth)
    return load_dataset(data.name, data.path, data.labels, size, count, data.contract, data.label_rules)


def check_folder(data: DataSpec, memory: int) -> None:
    """That a folder's images, which are all read, fit into so many bytes by what their headers say.

    Raises:
        ImageError: they don't; the line gives the figure.
    """
    count, each = (values_in_volumes, BYTES_OF_A_VOXEL) if data.name == VOLUME else (values_in, BYTES_OF_A_VALUE)
    if data.path and (needed := each * count(data.path)) > memory:
        samples = words_for_kind(data.name).samples
        raise ImageError(
            f"data.path={data.path}: its {samples} take {needed / GIB:.4g} GiB and this machine has "
            f"{memory / GIB:.4g}; name a folder with fewer of them"
        )


def labelled_images(data: DataSpec, dataset: Dataset) -> int:
    """How many images a folder with labels has, all of which are judged; 0 of any other data."""
    return dataset.windows if data.name not in OWN_IMAGES and dataset.labels is not None else 0


def further_batches(work: Workload) -> Iterator[tuple[Batch, int]]:
    """Every batch that is judged beyond the verified ones, one at a time, and how many of its images count.

    Each on the device. The last is filled up with the first images.
    """
    size = work.shape[0]
    for start in range(work.verified * size, work.judged, size):
        count = min(size, work.judged - start)
        if work.further is not None:
            yield work.further(start, start + size), count
            continue
        assert work.images is not None
        filled = np.concatenate([work.images[start : start + count], work.images[: size - count]])
        yield batched(to_batch(filled, work.contract).to(work.device)), count


def judged_images(work: Workload, sizes: Sequence[int], left_out: Collection[int]) -> list[int]:
    """The numbers of the evaluation images.

    Args:
        work: whose images they are.
        sizes: of each evaluation batch, how many of its images count.
        left_out: batches that don't count.
    """
    starts = ((number, number * work.shape[0], size) for number, size in enumerate(sizes) if number not in left_out)
    return [image for _, start, size in starts for image in range(start, start + size)]


def calibration_images(data: DataSpec, device: torch.device, verified: int, wanted: int) -> CalibrationImages:
    """Images beyond those that are checked, as far as there are windows of their own; else such windows rolled.

    The stained tissue's held-out quarter is judged, and the other three calibrate. A folder with labels is judged
    whole: up to half of what lies beyond the verified batches is given, and is then no evaluation image.

    Args:
        data: names the images.
        device: where they are to be.
        verified: how many batches, from the first, the answer is checked on.
        wanted: how many more images; rounded up to whole batches.
    """
    size = data.batch_size
    if apart := CALIBRATED_ON.get(data.name):
        others = images_of(replace(data, name=apart), math.ceil(wanted / size) * size)
        batches = in_batches(others.images, data, device)
        return CalibrationImages(list(map(batched, batches)), True, tuple(others.pictures))
    first = images_of(data, size)
    share = share_of(first.windows, labelled := labelled_images(data, first), size, verified, wanted)
    dataset, chosen = images_of(data, max(share.last, labelled)), slice(share.first, share.last)
    batches = in_batches(dataset.images[chosen], data, device)
    pictures = tuple(dataset.pictures[chosen])
    return CalibrationImages(list(map(batched, batches)), share.independent, pictures, share.left_out)


def in_batches(images: np.ndarray, data: DataSpec, device: torch.device) -> list[Tensor]:
    """Images [n, height, width, channels] as batches [batch, channels, height, width] on the device."""
    return list(to_batch(images, data.contract).to(device).split(data.batch_size))
