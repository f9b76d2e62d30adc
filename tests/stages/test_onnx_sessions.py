"""ONNX models: what is exported, and sessions that run it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import onnxruntime as ort
import pytest
import torch
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from torch import nn

from pipeline.records.diagnostics import SearchCount
from pipeline.stages.common import onnx_models
from pipeline.stages.common.onnx_models import BiasApart, biases_apart
from pipeline.stages.onnxruntime import nodes_searched
from pipeline.worker.failures import failure_of

NODES = {"CUDAExecutionProvider": {"Conv": 19, "ConvTranspose": 4, "Concat": 4, "FusedConv": 2}}


@pytest.mark.parametrize(
    ("nodes", "search", "asked"),
    [
        (NODES, "EXHAUSTIVE", 25),
        (NODES, "HEURISTIC", 25),
        (NODES, "DEFAULT", None),
        ({"CPUExecutionProvider": {"Conv": 19}}, "EXHAUSTIVE", None),
        ({}, "EXHAUSTIVE", None),
    ],
)
def test_onnx_runtime_asks_node_by_node(nodes: dict[str, dict[str, int]], search: str, asked: int | None) -> None:
    wanted = (SearchCount("cuDNN for ONNX Runtime", "nodes", asked, search.lower()),) if asked else ()
    assert nodes_searched(nodes, search) == wanted


@pytest.mark.parametrize(
    ("text", "kind"),
    [("Failed to allocate memory for requested buffer of size 1", "out of memory"), ("an operator failed", "error")],
)
def test_a_lack_of_memory_is_told_from_other_failures_of_a_call(text: str, kind: str) -> None:
    session = Mock()
    session.get_inputs.return_value = []
    session.get_outputs.return_value = [SimpleNamespace(shape=[1, 2, 4, 4])]
    session.run_with_iobinding.side_effect = Fail(text)
    *_, replay = onnx_models.bound(session, torch.zeros(1, 3, 4, 4), torch.float32)
    with pytest.raises(RuntimeError, match=text) as raised:
        replay()
    assert failure_of(raised.value)[0] == kind


@pytest.mark.parametrize("provider", ["cuda", "cpu"])
def test_a_session_is_told_how_many_threads_it_has(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ort.SessionOptions] = []

    def session(path: str, settings: ort.SessionOptions, providers: list[tuple[str, dict[str, str]]]) -> Any:
        asked.append(settings)
        return SimpleNamespace(get_providers=lambda: [providers[0][0]])

    monkeypatch.setattr(ort, "InferenceSession", session)
    monkeypatch.setattr(ort, "preload_dlls", lambda: None)
    onnx_models.open_session(Path("net.onnx"), provider, {})
    assert [settings.intra_op_num_threads for settings in asked] == [torch.get_num_threads()]


class Twice(nn.Module):
    """Calls one transposed convolution under two names, one without a bias, one for a size, and reads a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.again = self.first
        self.other = nn.Sequential(nn.ConvTranspose2d(4, 4, 2, stride=2, bias=False), nn.ReLU())
        self.sized = nn.ConvTranspose2d(4, 3, 3, stride=2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        raised = self.other(self.again(self.first(image)))
        return self.sized(raised, output_size=[81, 82]) + self.sized.weight.sum()


def test_biases_apart_are_additions_and_give_the_same_answer() -> None:
    net, image = Twice().eval(), torch.randn(2, 4, 5, 5)
    with torch.inference_mode():
        expected = net(image)
        found = biases_apart(net)(image)
    assert sum(isinstance(part, BiasApart) for part in net.modules()) == 3
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    apart = biases_apart(nn.ConvTranspose2d(4, 3, 2, stride=2).eval())
    graph = torch.export.export(apart, (torch.randn(1, 4, 5, 5),)).graph
    calls = [node for node in graph.nodes if node.op == "call_function"]
    (raised,) = [node for node in calls if "conv_transpose" in str(node.target)]
    assert len(raised.args) < 3 or raised.args[2] is None
    assert any("add" in str(node.target) for node in calls)
