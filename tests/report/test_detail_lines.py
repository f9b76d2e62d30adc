"""A stage's details as lines."""

from typing import Any

import pytest

from pipeline.records.run_record import CompileFacts
from pipeline.report.sections.stage import compile_lines, lines


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": "Tile(1)", "b": "Tile(2)", "c": "Tile(1)"}, ["a, c: Tile(1)", "b: Tile(2)"]),
        ({"fold_head": ["head"], "take_upsampling": []}, ["fold_head: head", "take_upsampling: none"]),
        ({"CUDAExecutionProvider": {"Conv": 19, "Relu": 18}}, ["CUDAExecutionProvider: Conv 19, Relu 18"]),
        (["x", "y"], ["x, y"]),
        ({}, ["none"]),
        ([], ["none"]),
        ("", ["none"]),
        (None, ["none"]),
        (0, ["0"]),
        (False, ["false"]),
        ("text", ["text"]),
    ],
)
def test_a_detail_is_told_in_lines(value: Any, said: list[str]) -> None:
    """Entries with the same value share a line; what is empty says so, and what is 0 doesn't."""
    assert lines(value) == said


def test_compiling_is_told_with_its_reasons_beside_their_counts() -> None:
    facts = CompileFacts(graphs=2, graph_breaks={"print": 2}, recompile_reasons=[])
    assert compile_lines(facts) == [
        ("graphs", ["2"]), ("graph breaks", ["2"]), ("graph break reasons", ["print: 2"]), ("recompiles", ["0"]),
        ("recompile reasons", ["none"]),
    ]  # fmt: skip
    assert compile_lines(None) == []
