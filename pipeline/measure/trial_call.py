"""Calls of a net to see what it does, of which nothing stays: neither in the net nor in torch's random numbers."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from pipeline.measure.batch import Batch


def trial_copy(net: nn.Module) -> tuple[nn.Module, dict[nn.Module, nn.Module]]:
    """A copy that shares the net's parameters, and of each module of the net its copy.

    What a call leaves in it, such as a grid that is made once and kept, the net doesn't have.
    """
    memo: dict[int, object] = {id(part): part for part in net.parameters()}
    copied = copy.deepcopy(net, memo)
    found = ((part, memo.get(id(part), part)) for part in net.modules())
    return copied, {part: copy_of for part, copy_of in found if isinstance(copy_of, nn.Module)}


@contextmanager
def trial(inputs: Batch) -> Iterator[None]:
    """Within, nothing is recorded for gradients, and random numbers on the inputs' device are as they were afterwards.

    Not in inference mode: a net's own code may keep what it makes, and change it later.
    """
    devices = [inputs.device] if inputs.is_cuda else []
    with torch.random.fork_rng(devices), torch.inference_mode(False), torch.no_grad():
        yield


def refuses(net: nn.Module, inputs: Batch) -> bool:
    """Whether a copy of the net fails that is called with the inputs, for another reason than memory that ran out."""
    try:
        with trial(inputs):
            trial_copy(net)[0](*inputs.clone())
    except (torch.OutOfMemoryError, MemoryError):
        return False
    except Exception:  # noqa: BLE001 - a net's own code raises whatever it likes
        return True
    return False
