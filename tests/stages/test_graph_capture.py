"""A network captured as a CUDA graph: it copies its inputs, in every mode of torch's gradients."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler.cuda_graphs import Captured

MODES = {"inference_mode": torch.inference_mode, "no_grad": torch.no_grad, "neither": nullcontext}


class Graph:
    """A CUDA graph without a GPU: a replay calls the network again on the memory of the capture."""

    def __init__(self) -> None:
        self.replay: Callable[[], object] = lambda: None


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Graph:
    """Stand in for CUDA graphs."""
    made, stream = Graph(), SimpleNamespace(wait_stream=lambda _: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: made)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    for name in ("graph", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    return made


@pytest.mark.parametrize("called_in", MODES)
@pytest.mark.parametrize("captured_in", MODES)
def test_a_captured_network_runs_in_every_mode(captured_in: str, called_in: str, graph: Graph) -> None:
    """Its answer may be changed in place, records no gradient, and inputs may want theirs."""
    net = nn.Conv2d(3, 2, 1)
    with MODES[captured_in]():
        captured = Captured(net, torch.zeros(2, 3, 4, 5))
    answer = captured.logits

    def replay() -> None:
        with torch.inference_mode():
            answer.copy_(net(captured.fixed[0]))

    graph.replay = replay
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
    """Eager and compiled, in every mode; the graph by itself reads what was copied last."""
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
