"""What a net does with an image of chance, looked at before the user's images are read: a folder may take minutes."""

import copy
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from models.image_batches import to_batch
from pipeline.compiler.batch import Batch, batched
from pipeline.config.data_request import TENSORS, VOLUME
from pipeline.errors import InputError
from pipeline.records.request import Job
from pipeline.worker.answer_checks import check_answer
from pipeline.worker.net_call import Net, called
from pipeline.worker.net_contract import IMAGES, check_arguments, check_dimensions, check_weights

TINY = 64  # pixels of a side, which most nets take
LARGEST = 1024  # likewise, of the run's own size; a larger one the whole check sees, which counts its memory first


def first_look(model: nn.Module, job: Job) -> None:
    """What the net's contract says of a tiny image, and where that fails of one of the run's size.

    On a copy, as a net may keep what it has seen. Of a net that can't be copied, of named tensors, and of images that
    keep a size of their own, what isn't seen here the whole check sees (`net_contract.check`).

    Args:
        model: on the job's device.
        job: names its images.

    Raises:
        InputError: as `net_contract.check`.
    """
    if job.data.name == TENSORS:
        return
    size = job.data.size
    net = Net(type(model).__name__, model, chance(job, min(TINY, size or TINY)), job.task)
    check_arguments(net)
    check_weights(net)
    check_dimensions(net)
    try:
        net = replace(net, model=copy.deepcopy(model))
    except Exception:  # noqa: BLE001 - whatever a net's parts say to that
        return
    with torch.random.fork_rng(devices=[]):
        if not answers(net) and size is not None and size <= LARGEST:
            answers(replace(net, inputs=chance(job, size)), strictly=True)


def answers(net: Net, *, strictly: bool = False) -> bool:
    """Whether the net's answer is what it must be; False where anything fails.

    Args:
        net: the net and an input.
        strictly: whether what is wrong with the net, rather than with the machine, is raised.
    """
    try:
        check_answer(net, called(net))
    except InputError:
        if strictly:
            raise
        return False
    except Exception:  # noqa: BLE001 - out of memory, above all: the whole check comes to it again, and says it better
        return False
    return True


def chance(job: Job, side: int) -> Batch:
    """Images of chance, normalised as the run's: [batch, channels, side, side], of volumes with their depth."""
    data = job.data
    space = [side, side] if data.name != VOLUME else [min(side, data.depth or side), side, side]
    shape = [min(IMAGES, data.batch_size), *space, data.contract.channels]
    drawn = np.random.default_rng(job.seed).integers(0, 256, shape, dtype=np.uint8)
    return batched(to_batch(drawn, data.contract).to(job.device))
