"""What a stage works on where the user gives tensors: every input of the net by its name, and what is right beside."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from models.tensor_files import Header, arguments_of, file_at, headers, inputs_of, read_tensors, repeated
from pipeline.compiler.batch import Batch
from pipeline.config.data_request import GIB
from pipeline.devices.host import memory_bytes
from pipeline.errors import TensorError
from pipeline.inputs.stain import UNLABELLED
from pipeline.records.request import DataSpec
from pipeline.stages.api import CalibrationImages, Workload
from pipeline.worker.calibration_share import share_of
from pipeline.worker.rotation_size import batches_of


def workload_of_tensors(
    model: nn.Module, data: DataSpec, masks: bool, device: torch.device, folder: Path, cache_bytes: int | None
) -> Workload:
    """The user's tensors and the net, which is on the device; arguments as of `pipeline.worker.workload.workload_on`.

    Raises:
        pipeline.errors.InputError: the file, or a tensor in it, isn't what the net takes; one line.
    """
    path, labels = file_at(data.path), data.labels
    found = headers(path)
    check_labels(labels, found, data.inputs or arguments_of(model)[1], path)
    names = inputs_of(model, [name for name in found if name != labels], data.inputs, path)
    size, samples = data.batch_size, next(iter(found.values())).shape[0]
    each = sum(found[name].size_bytes for name in names) // samples
    count, verified = batches_of(data, each * size, cache_bytes)
    judged = max(verified * size, samples if labels else 0)
    check_memory(path, found, each * max(size * count, judged))
    stored = repeated(read_tensors(path, names), max(size * count, math.ceil(judged / size) * size))
    rotations = {name: list(part[: size * count].to(device).split(size)) for name, part in stored.items()}
    first, *others = names
    right = read_tensors(path, [labels])[labels] if labels else None
    return Workload(
        model=model,
        batches=rotations[first],
        device=device,
        folder=folder,
        labels=classes_of(right, labels, len(stored[first])) if masks else None,
        targets=None if masks else values_of(right, len(stored[first])),
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
    """Samples beyond those that are judged, as far as there are any, with all inputs; else such as come again.

    Args:
        data: names the file; with labels in it all its samples are judged, and some are then given away.
        names: of the inputs, in the order of the net's forward.
        device: where they are to be.
        verified: how many batches, from the first, the answer is checked on.
        wanted: how many samples; rounded up to whole batches.
    """
    path, size = file_at(data.path), data.batch_size
    samples = next(iter(headers(path).values())).shape[0]
    first, last, independent, left_out = share_of(samples, samples if data.labels else 0, size, verified, wanted)
    if independent:
        found = read_tensors(path, names, slice(first, last))
    else:
        found = {name: part[first:last] for name, part in repeated(read_tensors(path, names), last).items()}
    columns = [part.to(device).split(size) for part in found.values()]
    pictures = tuple(f"sample {at % samples}" for at in range(first, last))
    batches = [Batch(parts, tuple(names)) for parts in zip(*columns, strict=True)]
    return CalibrationImages(batches, independent, pictures, left_out)


def check_labels(labels: str | None, found: Mapping[str, Header], inputs: Sequence[str], path: str) -> None:
    """That what is right is a tensor of the file, and none of the inputs.

    Raises:
        TensorError: it isn't; the line says what there is.
    """
    if labels and labels not in found:
        raise TensorError(f"data.labels={labels}: {path} holds no such tensor; it holds {', '.join(found)}")
    if labels and labels in inputs:
        raise TensorError(f"data.labels={labels}: one of the net's inputs; name what is right, or none")


def check_memory(path: str, found: dict[str, Header], rotation: int) -> None:
    """That the file's tensors and a rotation of so many bytes fit into this machine.

    Raises:
        TensorError: they don't; the line gives the figure.
    """
    needed, memory = rotation + sum(header.size_bytes for header in found.values()), memory_bytes()
    if needed > memory:
        raise TensorError(
            f"data.path={path}: its tensors and the rotation take {needed / GIB:.4g} GiB and this machine has "
            f"{memory / GIB:.4g}; choose a smaller data.batch_size, or a file with fewer samples"
        )


def classes_of(right: Tensor | None, name: str | None, count: int) -> np.ndarray | None:
    """Labels [samples, ...] as uint8, 255 where none is, for so many samples; None without labels.

    Raises:
        TensorError: they are no class indices.
    """
    if right is None:
        return None
    if right.is_floating_point() or int(right.min()) < 0 or int(right.max()) > UNLABELLED:
        raise TensorError(
            f"data.labels={name}: class indices are whole numbers from 0 to {UNLABELLED - 1}, and {UNLABELLED} where a "
            "value has no label; a regression net's are task=regression"
        )
    filled = np.full((count, *right.shape[1:]), UNLABELLED, np.uint8)
    filled[: len(right)] = right[:count].numpy().astype(np.uint8)
    return filled


def values_of(right: Tensor | None, count: int) -> Tensor | None:
    """What a regression net should answer, [samples, ...] in fp32, NaN beyond what is known; None where nothing is."""
    if right is None:
        return None
    filled = torch.full((count, *right.shape[1:]), math.nan)
    filled[: len(right)] = right[:count]
    return filled
