"""A network on fixed inputs refuses other forms, and copies its inputs in every mode of torch's gradients."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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
        monkeypatch.setattr(torch.cuda, name, lambda _, **__: nullcontext())
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    return graph


def calls_of(replayed: Replayed) -> dict[str, tuple[Callable[..., Tensor], Batch]]:
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


MODES = {"inference_mode": torch.inference_mode, "no_grad": torch.no_grad, "neither": nullcontext}


@pytest.mark.parametrize("called_in", MODES)
@pytest.mark.parametrize("captured_in", MODES)
def test_a_captured_network_runs_in_every_mode(captured_in: str, called_in: str, replayed: Replayed) -> None:
    net = nn.Conv2d(3, 2, 1)
    with MODES[captured_in]():
        captured = Captured(net, torch.zeros(2, 3, 4, 5))
    answer = captured.logits

    def replay() -> None:
        with torch.inference_mode():
            answer.copy_(net(captured.fixed[0]))

    replayed.replay = replay  # type: ignore[method-assign]
    for image in (torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5, requires_grad=True)):
        with MODES[called_in]():
            logits = captured(image)
            torch.testing.assert_close(logits, net(image))
            logits.mul_(2)
        assert not logits.requires_grad
        assert not captured.fixed[0].requires_grad


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_network_on_a_gpu_answers_for_images_wherever_they_lie(compiled: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 2, 3, padding=1)).cuda().eval()
    run: Callable[..., Tensor] = torch.compile(net) if compiled else net
    images = [torch.randn(2, 3, 128, 160, device="cuda") for _ in range(3)]
    with torch.inference_mode():
        run(images[0])
        captured = Captured(run, images[0])
        wanted = [run(image).clone() for image in images]
        beside = torch.empty(images[2].numel() + 1, device="cuda")[1:].view_as(images[2]).copy_(images[2])
    turned = images[2].to(memory_format=torch.channels_last)  # type: ignore[call-overload, unused-ignore]
    given, right = [*images, beside, turned, images[1]], [*wanted, wanted[2], wanted[2], wanted[1]]
    for mode in MODES.values():
        chosen: AbstractContextManager[object] = mode()
        with chosen:
            for image, answer in zip(given, right, strict=True):
                assert torch.equal(captured(image), answer)
    captured.graph.replay()
    torch.testing.assert_close(captured.logits, wanted[1], rtol=0, atol=0)


def memory_held(captured: Captured) -> int:
    pool = captured.graph.pool()
    segments = torch.cuda.memory_snapshot()
    return sum(segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) == tuple(pool))


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # torch records an empty one for its memory pool
@pytest.mark.gpu
@torch.inference_mode()
def test_a_graph_on_a_gpu_outlives_other_graphs_and_recordings() -> None:
    """cuBLAS needs its workspace for few rows of long sums; torch.compile frees all workspaces when it records."""
    torch.manual_seed(0)
    net = nn.Linear(5120, 1280, device="cuda", dtype=torch.float16)
    x = torch.randn(128, 5120, device="cuda", dtype=torch.float16)
    recorded = torch.compile(net, mode="reduce-overhead")
    for _ in range(2):
        recorded(x)
    torch._dynamo.reset()
    first, second = Captured(net, x), Captured(net, x)
    # If one graph held the workspace of both, replays of the other would end in a fault.
    assert memory_held(first) == memory_held(second) > 2**22
    answer = second(x).clone()
    del first
    for _ in range(2):
        recorded(x)
    torch.cuda.empty_cache()
    for _ in range(10):
        again = second(x)
    assert torch.equal(again, answer)
