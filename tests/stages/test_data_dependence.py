"""A net that reads numbers of what it computes isn't traced: the trace would be right for one batch alone."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipeline.stages import torchscript
from pipeline.stages.api import StageError, Workload


class Reading(nn.Module):
    def __init__(self, then: Callable[[nn.Module, Tensor], Tensor]) -> None:
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


def scaled(_: nn.Module, logits: Tensor) -> Tensor:
    return logits / logits.abs().max().item()


def by_numpy(_: nn.Module, logits: Tensor) -> Tensor:
    return logits / float(logits.abs().numpy().max())


def as_array(_: nn.Module, logits: Tensor) -> Tensor:
    return logits / float(np.abs(np.asarray(logits)).max())


def by_dlpack(_: nn.Module, logits: Tensor) -> Tensor:
    return logits / float(np.from_dlpack(logits).max())


def by_list(_: nn.Module, logits: Tensor) -> Tensor:
    return logits / float(max(logits.abs().flatten().tolist()))


def of_weights(net: nn.Module, logits: Tensor) -> Tensor:
    return logits * float(net.get_buffer("gain"))


def of_weights_by_numpy(net: nn.Module, logits: Tensor) -> Tensor:
    return logits * float(np.nan_to_num((net.get_buffer("gain") * torch.tensor([1, torch.nan])).numpy()).sum())


def of_nan(_: nn.Module, logits: Tensor) -> Tensor:
    return logits if torch.tensor(torch.nan).item() > 0 else logits * 2


def of_sizes(_: nn.Module, logits: Tensor) -> Tensor:
    return logits * 2 if logits.shape[-1] > 8 else logits


def reading(workload: Workload, then: Callable[[nn.Module, Tensor], Tensor]) -> Workload:
    torch.manual_seed(0)
    return replace(workload, model=Reading(then).eval())


@pytest.mark.parametrize("then", [halved, scaled, by_numpy, as_array, by_dlpack, by_list])
def test_a_net_that_reads_its_images_is_not_traced(
    workload: Workload, then: Callable[[nn.Module, Tensor], Tensor]
) -> None:
    said = r"reads of its images \(in Reading\.forward, test_data_dependence\.py:\d+\).*stage\.method=script"
    with pytest.raises(StageError, match=said):
        torchscript.build(reading(workload, then))


@pytest.mark.parametrize("then", [of_weights, of_weights_by_numpy, of_nan, of_sizes])
def test_numbers_of_weights_and_sizes_are_the_same_for_all_images(
    workload: Workload, then: Callable[[nn.Module, Tensor], Tensor]
) -> None:
    work = reading(workload, then)
    run = torchscript.build(work).run  # not in inference mode, in which item() is seen by nobody
    with torch.inference_mode():
        found, wanted = run(work.batches[0]), work.model(work.batches[0])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
