"""The convolutions for which ONNX Runtime asks cuDNN."""

import pytest

from pipeline.records.diagnostics import SearchCount
from pipeline.stages.onnxruntime import nodes_searched

NODES = {"CUDAExecutionProvider": {"Conv": 19, "ConvTranspose": 4, "Concat": 4, "FusedConv": 2}}


@pytest.mark.parametrize("search", ["EXHAUSTIVE", "HEURISTIC"])
def test_onnx_runtime_asks_node_by_node(search: str) -> None:
    """Alike or not, the convolutions on the GPU."""
    (found,) = nodes_searched(NODES, search)
    assert found == SearchCount("cuDNN for ONNX Runtime", "nodes", 25, search.lower())


@pytest.mark.parametrize(
    ("nodes", "search"),
    [(NODES, "DEFAULT"), ({"CPUExecutionProvider": {"Conv": 19}}, "EXHAUSTIVE"), ({}, "EXHAUSTIVE")],
)
def test_nobody_is_asked(nodes: dict[str, dict[str, int]], search: str) -> None:
    """Where a default was asked for, and by a session on the CPU."""
    assert nodes_searched(nodes, search) == ()
