"""A net captured as a CUDA graph: its inputs are copied until it is asked to spare that, and where it can't."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.stages.common import graph_capture as capture_room
from pipeline.stages.common import graph_inputs as room
from pipeline.stages.common.graph_capture import Captured
from tests.stages.driver_stub import BYTES, SHAPE, StubDriver, StubGraph, address, aligned, moves


class Stream:
    def wait_stream(self, _: "Stream") -> None:
        """There is one alone."""


class Moving:
    """What is captured: a net that gives its two inputs back, one below the other."""

    def __init__(self, graph: StubGraph) -> None:
        self.graph, self.answer = graph, torch.zeros(2, *SHAPE)
        self.graph.kernels = []

    def __call__(self, *inputs: Tensor) -> Tensor:
        self.graph.kernels.clear()
        for number, part in enumerate(inputs):
            self.graph.launch(moves(), address(part), address(self.answer, number * BYTES))
        return self.answer


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Callable[[StubDriver | None], Captured]:
    """Captures a net of two inputs by a stub of CUDA."""
    graph = StubGraph()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda **_: graph)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    for name in ("graph", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())

    def capture(driver: StubDriver | None) -> Captured:
        def bindings(_: str) -> StubDriver:
            if driver is None:
                raise ModuleNotFoundError("No module named 'cuda'")
            return driver

        monkeypatch.setattr(room, "import_module", bindings)
        monkeypatch.setattr("pipeline.stages.common.faster_inputs.MOST_SECONDS", math.inf)  # of a machine that is busy
        monkeypatch.setattr(room, "ALIGNED", 1)  # torch's memory on a CPU lies where it will
        return Captured(Moving(graph), torch.randn(SHAPE), torch.randn(SHAPE))

    return capture


def answers(captured: Captured, driver: StubDriver | None) -> int:
    """That it gives its inputs back, also by itself; how often the driver was called for it."""
    calls = driver.calls if driver else 0
    for _ in range(2):
        given = [aligned(torch.randn(SHAPE)) for _ in range(2)]
        assert torch.equal(captured(*given), torch.stack(given))
    made = (driver.calls if driver else 0) - calls
    captured.graph.replay()
    assert torch.equal(captured.logits, torch.stack(captured.fixed))
    return made


@pytest.mark.parametrize("faster", [True, False])
def test_what_is_captured_reads_its_inputs_in_place_where_that_is_faster(
    faster: bool, captured: Callable[[StubDriver | None], Captured], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then, and otherwise, a call copies them."""
    monkeypatch.setattr("pipeline.stages.common.faster_inputs.compared", lambda *_: "" if faster else "it is slower")
    driver = StubDriver()
    made = captured(driver)
    assert answers(made, driver) == 0
    assert made.copied == dict.fromkeys("01", room.UNTRIED)
    made.without_copies()
    assert answers(made, driver) == (4 if faster else 0)
    assert made.copied == ({} if faster else dict.fromkeys("01", "it is slower"))


@pytest.mark.parametrize("refuses", [0, 1, 2, 20])
def test_a_driver_that_refuses_leaves_the_graph_as_it_was_captured(
    refuses: int, captured: Callable[[StubDriver | None], Captured]
) -> None:
    """While it is proven, also where one kernel of two was told, and while it is timed; a second time, too."""
    driver = StubDriver(refuses)
    made = captured(driver)
    for _ in range(2):
        said = made.without_copies().copied
        assert said == dict.fromkeys("01", "RuntimeError: CUDA's driver answers CUDA_ERROR_INVALID_VALUE")
        assert answers(made, driver) == 0


def test_without_bindings_of_the_driver_inputs_are_copied(
    captured: Callable[[StubDriver | None], Captured],
) -> None:
    """The reason is the import's."""
    made = captured(None).without_copies()
    assert made.copied == dict.fromkeys("01", "ModuleNotFoundError: No module named 'cuda'")
    answers(made, None)


def test_without_memory_inputs_are_copied(
    captured: Callable[[StubDriver | None], Captured], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For batches to time it with."""
    made = captured(StubDriver())
    monkeypatch.setattr(capture_room, "choose_in_place", raising(torch.OutOfMemoryError("CUDA out of memory")))
    assert made.without_copies().copied == dict.fromkeys("01", "OutOfMemoryError: CUDA out of memory")
    answers(made, None)


def raising(error: Exception) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise error

    return call


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_net_on_a_gpu_reads_its_images_where_they_lie(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether that is faster or not, eager and compiled, with images anywhere; the graph alone reads the capture's."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 2, 3, padding=1)).cuda().eval()
    run: Any = torch.compile(net) if compiled else net
    images = [torch.randn(2, 3, 128, 160, device="cuda") for _ in range(3)]
    with torch.inference_mode():
        run(images[0])
        captured = Captured(run, images[0])
        wanted = [run(image).clone() for image in images]
        beside = torch.empty(images[2].numel() + 1, device="cuda")[1:].view_as(images[2]).copy_(images[2])
        turned = images[2].to(memory_format=torch.channels_last)
        given, right = [*images, beside, turned, images[1]], [*wanted, wanted[2], wanted[2], wanted[1]]
        for asked in (captured, captured.without_copies()):
            for image, answer in zip(given, right, strict=True):
                assert torch.equal(asked(image), answer)
        monkeypatch.setattr("pipeline.stages.common.faster_inputs.compared", lambda *_: "")
        captured.without_copies()
        for image, answer in zip(given, right, strict=True):
            assert torch.equal(captured(image), answer)
        captured.graph.replay()
        torch.testing.assert_close(captured.logits, run(captured.fixed[0]), rtol=0, atol=0)
        if compiled:
            assert captured.copied == {}
