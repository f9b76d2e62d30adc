"""Load what a stage works on: the network and its images, volumes or tensors, on the device."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from models.build import build_model
from models.image_batches import to_batch
from models.model_output import with_output
from models.tensor_files import Header, arguments_of, file_at, headers, inputs_of, read_tensors, repeated
from pipeline.compiler.batch import Batch, batched
from pipeline.config import data_request
from pipeline.config.data_request import BYTES_OF_A_VALUE, BYTES_OF_A_VOXEL, GIB, OWN_IMAGES, TENSORS, VOLUME
from pipeline.devices.host import memory_bytes
from pipeline.errors import ImageError, ModelError, TensorError
from pipeline.inputs.datasets import CALIBRATED_ON, Dataset, dataset_loader
from pipeline.inputs.folders import values_in
from pipeline.inputs.input_contract import UNLABELLED
from pipeline.records.request import DataSpec, Job, ModelSpec
from pipeline.stages.api import CalibrationImages, Workload
from pipeline.worker.contract import change_since, process_state

VERIFIED_IMAGES = 8  # enough for shares of pixels; all stages see the same
MOST_BATCHES = 64  # in a rotation


class Share(NamedTuple):
    """The samples that are given to calibrate on."""

    first: int  # the samples from the one up to the other, whole batches; beyond those that there are they come again
    last: int
    independent: bool  # whether none of them is judged
    left_out: tuple[int, ...] = ()  # numbers of the evaluation batches that the answer must not be judged on


def share_of(samples: int, labelled: int, size: int, verified: int, wanted: int) -> Share:
    """Return the samples to calibrate on: of labelled ones, at most half of those beyond the verified batches."""
    checked, count = verified * size, math.ceil(wanted / size)
    if labelled and (whole := (labelled - checked) // size) > 0:
        calibrates = min(count, max(1, whole // 2))
        left_out = given_away(verified, whole, calibrates)
        first = left_out[0] * size
        return Share(first, first + calibrates * size, True, left_out)
    there = min(count, (samples - checked) // size)
    return Share(checked, checked + (there if there > 0 else count) * size, there > 0)


def given_away(verified: int, whole: int, given: int) -> tuple[int, ...]:
    """Which evaluation batches a stage is calibrated on: the last whole ones."""
    return tuple(range(verified + whole - given, verified + whole))


def batches_of(data: DataSpec, batch_bytes: int, cache_bytes: int | None) -> tuple[int, int]:
    """Return the number of batches in rotation, and the number of those that the answer is verified on."""
    count = min(MOST_BATCHES, max(data.batches, math.ceil(2 * (cache_bytes or 0) / batch_bytes)))
    return count, min(count, max(data.batches, math.ceil(VERIFIED_IMAGES / data.batch_size)))


def workload_of_tensors(
    model: nn.Module, data: DataSpec, masks: bool, device: torch.device, folder: Path, cache_bytes: int | None
) -> Workload:
    """Return the workload of the user's tensors and a network on the device; arguments as in `workload_on`."""
    path, labels = file_at(data.path), data.labels
    tensors = headers(path)
    check_labels(labels, tensors, data.inputs or arguments_of(model)[1], path)
    names = inputs_of(model, [name for name in tensors if name != labels], data.inputs, path)
    size, samples = data.batch_size, next(iter(tensors.values())).shape[0]
    each = sum(tensors[name].size_bytes for name in names) // samples
    count, verified = batches_of(data, each * size, cache_bytes)
    judged = max(verified * size, samples if labels else 0)
    check_memory(path, tensors, each * max(size * count, judged))
    stored = repeated(read_tensors(path, names), max(size * count, math.ceil(judged / size) * size))
    rotations = {name: list(part[: size * count].to(device).split(size)) for name, part in stored.items()}
    first, *others = names
    right, filled, targets = read_tensors(path, [labels])[labels] if labels else None, None, None
    if right is not None and masks:
        if right.is_floating_point() or int(right.min()) < 0 or int(right.max()) > UNLABELLED:
            raise TensorError(
                f"data.labels={labels}: class indices are whole numbers from 0 to {UNLABELLED - 1}, and {UNLABELLED} "
                "where a value has no label; for a regression network set task=regression"
            )
        filled = np.full((len(stored[first]), *right.shape[1:]), UNLABELLED, np.uint8)
        filled[: len(right)] = right[: len(filled)].numpy().astype(np.uint8)
    elif right is not None:  # NaN where unknown
        targets = torch.full((len(stored[first]), *right.shape[1:]), math.nan)
        targets[: len(right)] = right[: len(targets)]
    return Workload(
        model=model,
        batches=rotations[first],
        device=device,
        folder=folder,
        labels=filled,
        targets=targets,
        has_masks=masks,
        distinct=min(samples, len(stored[first])),
        sources=tuple(f"{Path(path).name} sample {at % samples}" for at in range(len(stored[first]))),
        pictures=tuple(f"sample {at % samples}" for at in range(len(stored[first]))),
        verified=verified,
        judged=judged,
        name=first,
        others={name: rotations[name] for name in others},
        spare=partial(calibration_samples, data, names, device, verified),
        further=lambda begin, end: Batch(tuple(stored[name][begin:end].to(device) for name in names), tuple(names)),
    )


def calibration_samples(
    data: DataSpec, names: Sequence[str], device: torch.device, verified: int, wanted: int
) -> CalibrationImages:
    """Return samples beyond the judged ones with all inputs; repeated ones where there are no others."""
    path, size = file_at(data.path), data.batch_size
    samples = next(iter(headers(path).values())).shape[0]
    first, last, independent, left_out = share_of(samples, samples if data.labels else 0, size, verified, wanted)
    if independent:
        columns_by_name = read_tensors(path, names, slice(first, last))
    else:
        columns_by_name = {name: part[first:last] for name, part in repeated(read_tensors(path, names), last).items()}
    columns = [part.to(device).split(size) for part in columns_by_name.values()]
    pictures = tuple(f"sample {at % samples}" for at in range(first, last))
    batches = [Batch(parts, tuple(names)) for parts in zip(*columns, strict=True)]
    return CalibrationImages(batches, independent, pictures, left_out)


def check_labels(labels: str | None, found: Mapping[str, Header], inputs: Sequence[str], path: str) -> None:
    """Raise if the labels aren't a tensor of the file, or are one of the inputs."""
    if labels and labels not in found:
        raise TensorError(f"data.labels={labels}: {path} holds no such tensor; it holds {', '.join(found)}")
    if labels and labels in inputs:
        raise TensorError(f"data.labels={labels}: one of the network's inputs; name the labels, or none")


def check_memory(path: str, found: dict[str, Header], rotation: int) -> None:
    """Raise if the file's tensors and a rotation of `rotation` bytes exceed this machine's memory."""
    needed, memory = rotation + sum(header.size_bytes for header in found.values()), memory_bytes()
    if needed > memory:
        raise TensorError(
            f"data.path={path}: its tensors and the rotation take {needed / GIB:.4g} GiB and this machine has "
            f"{memory / GIB:.4g}; choose a smaller data.batch_size, or a file with fewer samples"
        )


def load(job: Job, cache_bytes: int | None, look: Callable[[nn.Module, Job], None] | None = None) -> Workload:
    """Load the job's network and images on its device; `look` receives the network before any image is read."""
    # The rotation is at least twice as large as the last cache's `cache_bytes`, so no input is found there.
    device, data = torch.device(job.device), job.data
    torch.manual_seed(job.seed)
    model = net_of(job)
    model.to(device)  # a network's own `to` may not return it
    if look:
        look(model, job)
    work = workload_on(model, data, job.task.has_masks, device, Path(job.folder), cache_bytes)
    return replace(work, seed=job.seed, earlier=Path(job.earlier) if job.earlier else None)


def workload_on(
    model: nn.Module, data: DataSpec, has_masks: bool, device: torch.device, folder: Path, cache_bytes: int | None
) -> Workload:
    """Return the workload of a network on the device: all that its stages are timed and judged on."""
    if data.name == TENSORS:
        return workload_of_tensors(model, data, has_masks, device, folder, cache_bytes)
    batch_size = data.batch_size
    each = BYTES_OF_A_VOXEL if data.name == VOLUME else BYTES_OF_A_VALUE
    memory = memory_bytes()
    if data.path and (needed := each * values_in(data.path, data.name == VOLUME)) > memory:  # by the images' headers
        raise ImageError(
            f"data.path={data.path}: its {data_request.words_for_kind(data.name).samples} take {needed / GIB:.4g} GiB "
            f"and this machine has {memory / GIB:.4g}; name a folder with fewer of them"
        )
    load = images_from(data)
    count, verified = batches_of(data, 4 * (first := load(batch_size)).images.size, cache_bytes)
    judged = max(verified * batch_size, labelled_images(data, first))
    dataset = load(max(batch_size * count, judged))
    for part in (dataset.images, dataset.labels):
        if part is not None:
            part.setflags(write=False)  # a stage is judged by it
    return Workload(
        model=model,
        batches=in_batches(dataset.images[: batch_size * count], data, device),
        device=device,
        folder=folder,
        labels=dataset.labels if has_masks else None,  # masks aren't targets for values
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


def net_of(job: Job) -> nn.Module:
    """Return the job's network, on the CPU."""
    return net_of_spec(job.model, job.seed, partial(example_of, job.data))


def example_of(data: DataSpec) -> tuple[Tensor, ...]:
    """Return a batch of each input, as the run has them."""
    if data.name == TENSORS:
        path = file_at(data.path)
        names = list(data.inputs) or [name for name in headers(path) if name != data.labels]
        tensors = read_tensors(path, names, slice(0, data.batch_size)).values()
        return tuple(repeated({"": part}, data.batch_size)[""] for part in tensors)
    return (in_batches(images_of(data, data.batch_size).images[: data.batch_size], data, torch.device("cpu"))[0],)


def net_of_spec(asked: ModelSpec, seed: int, example: Callable[[], tuple[Tensor, ...]] | None = None) -> nn.Module:
    """Return the network of a request, on the CPU."""
    if asked.file:
        from pipeline.worker.net_file import net_of_file  # imports Inductor

        return with_output(net_of_file(asked.file, memory_bytes(), example), asked.output, asked.upsample_logits)
    before, key, upsample = process_state(), asked.checkpoint_key, asked.upsample_logits
    model = build_model(asked.target, asked.options, asked.checkpoint, seed, asked.output, key=key, upsample=upsample)
    if change := change_since(before):
        raise ModelError(
            f"model.target: {asked.target} changes the process where it is imported or made: {change}; leave that to "
            "the program that uses it"
        )
    return model


def images_of(data: DataSpec, count: int | None) -> Dataset:
    """Load `count` of the job's images; None: each once."""
    return images_from(data)(count)


def images_from(data: DataSpec) -> Callable[[int | None], Dataset]:
    """Read the job's images, and return a function that gives as many of them as it is asked for."""
    return dataset_loader(data.name, data.path, data.labels, data.sides, data.contract, data.label_rules, data.images)


def labelled_images(data: DataSpec, dataset: Dataset) -> int:
    """Return the number of images that are all judged: those of a folder with labels, or drawn ones; else 0."""
    all_judged = data.name not in OWN_IMAGES or data.images is not None
    return dataset.windows if all_judged and dataset.labels is not None else 0


def further_batches(work: Workload) -> Iterator[tuple[Batch, int]]:
    """Yield judged batches beyond the verified ones, filled up with first images, and how many images count."""
    size = work.shape[0]
    for start in range(work.verified * size, work.judged, size):
        count = min(size, work.judged - start)
        if work.further is not None:
            yield work.further(start, start + size), count
            continue
        assert work.images is not None
        filled = np.concatenate([work.images[start : start + count], work.images[: size - count]])
        images = work.batches[0].dtype == torch.uint8  # of a stage that normalises
        yield batched((torch.from_numpy(filled) if images else to_batch(filled, work.contract)).to(work.device)), count


def judged_images(work: Workload, sizes: Sequence[int], left_out: Collection[int]) -> list[int]:
    """Return the numbers of the evaluation images."""
    starts = ((number, number * work.shape[0], size) for number, size in enumerate(sizes) if number not in left_out)
    return [image for _, start, size in starts for image in range(start, start + size)]


def calibration_images(data: DataSpec, device: torch.device, verified: int, wanted: int) -> CalibrationImages:
    """Return images beyond the verified ones; rolled windows where there are no others."""
    # Drawn images have a split of their own. Of a folder with labels, up to half of the rest calibrates and isn't
    # judged.
    size = data.batch_size
    if apart := CALIBRATED_ON.get(data.name):
        others = images_of(replace(data, name=apart, images=None), math.ceil(wanted / size) * size)
        batches = in_batches(others.images, data, device)
        return CalibrationImages(list(map(batched, batches)), True, tuple(others.pictures))
    load = images_from(data)
    first = load(size)
    share = share_of(first.windows, labelled := labelled_images(data, first), size, verified, wanted)
    dataset, chosen = load(max(share.last, labelled)), slice(share.first, share.last)
    batches = in_batches(dataset.images[chosen], data, device)
    pictures = tuple(dataset.pictures[chosen])
    return CalibrationImages(list(map(batched, batches)), share.independent, pictures, share.left_out)


def in_batches(images: np.ndarray, data: DataSpec, device: torch.device) -> list[Tensor]:
    """Return images [n, height, width, channels] as batches [batch, channels, height, width] on the device."""
    return list(to_batch(images, data.contract).to(device).split(data.batch_size))
