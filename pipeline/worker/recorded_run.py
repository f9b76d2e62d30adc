"""The net and the inputs of a finished run, read again as its record names them."""

import torch
from torch import Tensor, nn

from models.samples import load_dataset, to_batch, window
from models.tensor_files import file_at, headers, in_order, read_tensors, repeated
from pipeline.config.data_request import TENSORS
from pipeline.measure.batch import IMAGE
from pipeline.records.run_record import RunRecord
from pipeline.worker.workload import net_of_spec


def recorded_net(run: RunRecord) -> nn.Module:
    """The run's net with its weights, in fp32, on the CPU; errors as of `pipeline.worker.workload.net_of`."""
    seed = run.config.get("seed")
    return net_of_spec(run.settings.model, seed if isinstance(seed, int) else 0)


def recorded_inputs(run: RunRecord, net: nn.Module, device: torch.device, batches: int) -> dict[str, list[Tensor]]:
    """The run's first batches, as many as are asked for, by the inputs' names in the order of the net's forward.

    Each is [batch, channels, height, width] of images, with a depth before the height of volumes, and of the user's
    tensors whatever they hold; on the device.

    Raises:
        models.errors.InputError: a file is not what it was; one line.
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
    names = in_order(net, [name for name in headers(path) if name != data.labels], data.inputs, path)
    return repeated(read_tensors(path, names), count)
