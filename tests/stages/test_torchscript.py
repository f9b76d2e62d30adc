"""Nets that TorchScript takes only unoptimised, or not at all: the trace of a net that reads its data holds once."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pipeline.errors import typed_line
from pipeline.stages import torchscript
from pipeline.stages.api import Runner, StageError, Workload
from pipeline.stages.torchscript import Method
from tests.input_nets import Between

pytestmark = pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
WITHOUT = "the frozen program without torch.jit.optimize_for_inference, with which it fails: RuntimeError: mkldnn_"


POOL = partial(functional.avg_pool2d, kernel_size=2, divisor_override=3)


def gelu_by_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def built(between: Callable[[Tensor], Tensor], folder: Path, method: Method = "trace") -> tuple[Workload, Runner]:
    torch.manual_seed(0)
    batches = [torch.randn(1, 3, 8, 8) for _ in range(2)]
    work = Workload(Between(between, width=4).eval(), batches, torch.device("cpu"), folder, verified=2)
    return work, torchscript.build(work, method=method)


def check_answers(work: Workload, stage: Runner) -> None:
    with torch.inference_mode():
        for batch in work.batches:
            torch.testing.assert_close(stage.run(batch), work.model(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("between", "method", "why"),
    [
        (gelu_by_tanh, "trace", "gelu: fast, approximate gelu is not supported"),
        (gelu_by_tanh, "script", "gelu: fast, approximate gelu is not supported"),
        (POOL, "trace", "avg_pool2d operator does not support divisor"),
    ],
)
def test_what_fails_when_optimised_runs_as_it_was_frozen(
    between: Callable[[Tensor], Tensor], method: Method, why: str, tmp_path: Path
) -> None:
    work, stage = built(between, tmp_path, method)
    check_answers(work, stage)
    assert stage.execution.instead == WITHOUT + why
    assert stage.description.endswith(f"loaded from its file; it is {WITHOUT}{why}")


def test_what_is_optimised_says_nothing_of_it(tmp_path: Path) -> None:
    work, stage = built(functional.gelu, tmp_path)
    check_answers(work, stage)
    assert stage.execution.instead == ""
    assert stage.description.endswith("loaded from its file")


def test_what_fails_either_way_is_an_error_that_says_why(tmp_path: Path) -> None:
    work, _ = built(functional.relu, tmp_path)
    others = replace(work, batches=[torch.randn(1, 5, 8, 8)])
    with pytest.raises(RuntimeError) as caught, torchscript.deprecations_filtered():
        torchscript.optimised(tmp_path / "model.pt", work.model, others)
    assert typed_line(caught.value).startswith("RuntimeError: Given groups=1, weight of size [4, 3, 3, 3]")


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor) -> Tensor:
        ctx.save_for_backward(image)
        ctx.wants = ctx.needs_input_grad[0]
        return image * image.sigmoid()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(image: Tensor) -> Tensor:
        return 2 * image

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)


def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(functional.relu, x, use_reentrant=True)


def as_classes(x: Tensor) -> Tensor:
    return x * functional.one_hot(x.argmax(1), 4).permute(0, 3, 1, 2)


@pytest.mark.parametrize("between", [Swish.apply, Doubled.apply, checkpointed, as_classes, lambda x: x.data * 2])
def test_a_trace_holds_own_functions_and_checks_of_data(between: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    check_answers(*built(between, tmp_path))


def test_what_cannot_be_scripted_is_told_what_takes_it_if_anything(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"^TorchScript .*; stage\.method=trace takes it$"):
        built(checkpointed, tmp_path, "script")
    with pytest.raises(StageError) as caught:
        built(lambda x: checkpointed(x) / x.abs().max().item(), tmp_path, "script")
    assert "stage.method=trace" not in str(caught.value)


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
    said = r"reads of its images \(in Reading\.forward, test_torchscript\.py:\d+\).*stage\.method=script"
    with pytest.raises(StageError, match=said):
        torchscript.build(reading(workload, then))


@pytest.mark.parametrize("then", OF_ALL.values(), ids=OF_ALL)
def test_numbers_of_weights_and_sizes_are_the_same_for_all_images(workload: Workload, then: Then) -> None:
    work = reading(workload, then)
    run = torchscript.build(work).run  # not in inference mode, in which item() is seen by nobody
    with torch.inference_mode():
        found, wanted = run(work.batches[0]), work.model(work.batches[0])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
