"""A net that is built for inputs of one form refuses others: it would answer for one image in the place of eight."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.compiler.batch import Batch
from pipeline.compiler.cuda_graphs import Captured
from pipeline.compiler.input_forms import for_these_alone, form_of
from pipeline.stages.common import onnx_models

OTHERS = {
    "one image": (torch.ones(1, 3, 4, 5), r"input 0 is \[1, 3, 4, 5\] float32 on cpu, and this network was built for "),
    "another type": (torch.ones(8, 3, 4, 5).double(), r"\[8, 3, 4, 5\] float64 on cpu, and .* \[8, 3, 4, 5\] float32 "),
    "elsewhere": (torch.ones(8, 3, 4, 5, device="meta"), r"float32 on meta, and this network was built for .* on cpu$"),
}


class Replayed:
    """What runs on fixed inputs, as a CUDA graph and a session with bound memory do; counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def replay(self) -> None:
        self.calls += 1


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Replayed:
    """In the place of CUDA graphs, where no GPU is."""
    graph, stream = Replayed(), SimpleNamespace(wait_stream=lambda _: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    for name in ("graph", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    return graph


def calls_of(replayed: Replayed) -> dict[str, tuple[Callable[..., Tensor], Batch]]:
    """Each call on fixed inputs, and what it reads."""
    batch = Batch((torch.zeros(8, 3, 4, 5), torch.zeros(8)), ("image", "step"))
    captured = Captured(lambda image, step: image + step[:, None, None, None], *batch)
    fixed, stream = batch.clone(), torch.cuda.Stream()
    buffers = (fixed, torch.empty(8, 2, 4, 5), replayed.replay)
    return {
        "CUDA graph": (captured, Batch(captured.fixed, batch.names)),
        "ONNX Runtime": (onnx_models.bound_call(*buffers), fixed),
        "ONNX Runtime on a GPU": (onnx_models.bound_call(*buffers, stream), fixed),
    }


@pytest.mark.parametrize("name", ["CUDA graph", "ONNX Runtime", "ONNX Runtime on a GPU"])
def test_fixed_inputs_take_one_form(name: str, replayed: Replayed) -> None:
    """Whatever else is given is refused before a value of it is copied; which one it was, and what is taken."""
    call, fixed = calls_of(replayed)[name]
    for image, said in OTHERS.values():
        with pytest.raises(ValueError, match=said):
            call(image, torch.ones(8))
    with pytest.raises(
        ValueError, match=r"input 1 is \[1\] float32 on cpu, and this network was built for \[8\] float32 "
    ):
        call(torch.ones(8, 3, 4, 5), torch.ones(1))
    with pytest.raises(ValueError, match="1 inputs, and this network was built for 2"):
        call(torch.ones(8, 3, 4, 5))
    assert replayed.calls == 0
    assert not any(bool(part.any()) for part in fixed)
    call(torch.ones(8, 3, 4, 5).to(memory_format=torch.channels_last), torch.ones(8))  # type: ignore[call-overload, unused-ignore]
    assert replayed.calls == 1
    assert all(bool(part.all()) for part in fixed)


def test_a_package_is_given_what_it_was_built_for_in_the_order_in_which_it_reads_it() -> None:
    """It asks nothing itself, and reads memory as that of its own inputs lay."""
    given: list[tuple[Any, ...]] = []

    def package(*inputs: Tensor) -> Tensor:
        given.append(tuple(part.is_contiguous() for part in inputs))
        return inputs[0]

    call = for_these_alone(package, [form_of(torch.zeros(8, 3, 4, 5))])
    for image, said in OTHERS.values():
        with pytest.raises(ValueError, match=said):
            call(image)
    image = torch.rand(8, 3, 4, 5)
    assert torch.equal(call(image.to(memory_format=torch.channels_last)), image)  # type: ignore[call-overload, unused-ignore]
    assert given == [(True,)]
