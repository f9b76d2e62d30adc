"""The net and the inputs of a finished run, read again as its record names them."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from models.image_batches import to_batch
from models.tensor_files import file_at, headers, inputs_of, read_tensors, repeated
from pipeline.compiler.batch import IMAGE
from pipeline.config.data_request import TENSORS
from pipeline.inputs.datasets import load_dataset, window
from pipeline.records.request import DataSpec
from pipeline.records.run_record import RunRecord
from pipeline.stages.api import CalibrationImages, Workload
from pipeline.worker.rotation_size import batches_of
from pipeline.worker.tensor_workload import calibration_samples
from pipeline.worker.workload import calibration_images, net_of_spec


def recorded_net(run: RunRecord) -> nn.Module:
    """The run's net with its weights, in fp32, on the CPU; errors as of `pipeline.worker.workload.net_of`."""
    seed = run.config.get("seed")
    return net_of_spec(run.settings.model, seed if isinstance(seed, int) else 0)


def recorded_inputs(run: RunRecord, net: nn.Module, device: torch.device, batches: int) -> dict[str, list[Tensor]]:
    """The run's first batches, as many as are asked for, by the inputs' names in the order of the net's forward.

    Each is [batch, channels, height, width] of images, with a depth before the height of volumes, and of the user's
    tensors whatever they hold; on the device.

    Raises:
        pipeline.errors.InputError: a file is not what it was; one line.
    """
    data, size = run.settings.data, run.batch_size
    if data.name == TENSORS:
        found = _tensors(run, net, size * batches)
    else:
        shape, rules = window(data.name, data.image_size, data.depth), (data.contract, data.label_rules)
        images = load_dataset(data.name, data.path, data.labels, shape, size * batches, *rules).images
        found = {IMAGE: to_batch(images, data.contract)}
    return {name: list(part.to(device).split(size)) for name, part in found.items()}


def _tensors(run: RunRecord, net: nn.Module, count: int) -> dict[str, Tensor]:
    data = run.settings.data
    path = file_at(data.path)
    names = inputs_of(net, [name for name in headers(path) if name != data.labels], data.inputs, path)
    return repeated(read_tensors(path, names), count)


def recorded_workload(run: RunRecord, net: nn.Module, device: torch.device, folder: Path) -> Workload:
    """What the run's stages were built on: its rotation, and what they were calibrated on.

    Args:
        run: its record.
        net: its net, on the device.
        device: where to build.
        folder: for what a stage writes.

    Raises:
        pipeline.errors.InputError: a file is not what it was; one line.
    """
    data, seed = data_spec(run), run.config.get("seed")
    one = recorded_inputs(run, net, device, 1)
    count, verified = rotation_of(run, sum(part.nbytes for [part] in one.values()))
    rotations = recorded_inputs(run, net, device, count)
    first, *others = rotations
    return Workload(
        net,
        rotations[first],
        device,
        folder,
        seed=seed if isinstance(seed, int) else 0,
        contract=data.contract,
        verified=verified,
        spare=recorded_calibration(run, list(rotations), device, verified),
        name=first,
        others={name: rotations[name] for name in others},
        has_masks=run.settings.task.has_masks,
    )


def rotation_of(run: RunRecord, batch_bytes: int) -> tuple[int, int]:
    """How many batches, of so many bytes each, the run's stages were given, and how many of them it checked."""
    return batches_of(data_spec(run), batch_bytes, run.environment.l2_bytes if run.environment else None)


def recorded_calibration(
    run: RunRecord, names: Sequence[str], device: torch.device, verified: int
) -> Callable[[int], CalibrationImages]:
    """What gives the images, or samples of tensors, that the run's stages were calibrated on.

    Args:
        run: its record.
        names: of the net's inputs, in the order of its forward.
        device: where they are to be.
        verified: from `rotation_of`.
    """
    data = data_spec(run)
    if data.name == TENSORS:
        return partial(calibration_samples, data, names, device, verified)
    return partial(calibration_images, data, device, verified)


def data_spec(run: RunRecord) -> DataSpec:
    """The images of a run as its workers were told of them."""
    said, asked = run.settings.data, run.config.get("data")
    batches = asked.get("batches") if isinstance(asked, dict) else None
    return DataSpec(
        said.name,
        said.path,
        said.labels,
        said.image_size,
        run.batch_size,
        batches if isinstance(batches, int) else 1,
        said.contract,
        said.label_rules,
        tuple(said.inputs),
        said.depth,
    )
