"""A net that reads numbers of what it computes isn't traced: the trace would be right for one batch alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipeline.stages import torchscript
from pipeline.stages.api import StageError, Workload

Then = Callable[[Any, Tensor], Tensor]


class Reading(nn.Module):
    def __init__(self, then: Then) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 2, 1)
        self.register_buffer("gain", torch.tensor(2.0))
        self.then = then

    def forward(self, image: Tensor) -> Tensor:
        return self.then(self, self.head(image))


def halved(_: nn.Module, logits: Tensor) -> Tensor:
    while logits.abs().mean() > 0.1:
        logits = logits / 2
    return logits


OF_IMAGES: dict[str, Then] = {
    "a loop": halved,
    "item": lambda _, logits: logits / logits.abs().max().item(),
    "numpy": lambda _, logits: logits / float(logits.abs().numpy().max()),
    "an array": lambda _, logits: logits / float(np.abs(np.asarray(logits)).max()),
    "DLPack": lambda _, logits: logits / float(np.from_dlpack(logits).max()),
    "a list": lambda _, logits: logits / float(max(logits.abs().flatten().tolist())),
}
OF_ALL: dict[str, Then] = {
    "a weight": lambda net, logits: logits * float(net.gain),
    "weights by numpy": lambda net, logits: (
        logits * float(np.nan_to_num((net.gain * torch.tensor([1, torch.nan])).numpy()).sum())
    ),
    "NaN": lambda _, logits: logits if torch.tensor(torch.nan).item() > 0 else logits * 2,
    "sizes": lambda _, logits: logits * 2 if logits.shape[-1] > 8 else logits,
}


def reading(workload: Workload, then: Then) -> Workload:
    torch.manual_seed(0)
    return replace(workload, model=Reading(then).eval())


@pytest.mark.parametrize("then", OF_IMAGES.values(), ids=OF_IMAGES)
def test_a_net_that_reads_its_images_is_not_traced(workload: Workload, then: Then) -> None:
    said = r"reads of its images \(in Reading\.forward, test_data_dependence\.py:\d+\).*stage\.method=script"
    with pytest.raises(StageError, match=said):
        torchscript.build(reading(workload, then))


@pytest.mark.parametrize("then", OF_ALL.values(), ids=OF_ALL)
def test_numbers_of_weights_and_sizes_are_the_same_for_all_images(workload: Workload, then: Then) -> None:
    work = reading(workload, then)
    run = torchscript.build(work).run  # not in inference mode, in which item() is seen by nobody
    with torch.inference_mode():
        found, wanted = run(work.batches[0]), work.model(work.batches[0])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
