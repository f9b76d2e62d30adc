"""A stage that comes to something else than its name says so, and the report with it."""

from typing import Any

import pytest
import torch

from pipeline.records.run_record import Execution, Precision
from pipeline.stages.api import Runner
from pipeline.stages.common.what_ran import owned_up
from pipeline.stats.warnings import stage_warnings
from tests.fake_machine import stage_record, steady_pair

NONE_SUITS = "no layer of the net suits the project's kernels"
BOTH = {"Inductor": 1.0, "own kernels": 0.9}


def owned(precision: Precision, kernels: int, promised: Any, **details: Any) -> str:
    """What a stage with so many own kernels says of itself."""
    provider = "own kernels" if kernels else "Inductor"
    made = Runner(torch.relu, "a stage", Execution(precision, provider=provider, own_kernels=kernels), details)
    found = owned_up(made, promised).execution
    assert found is not None
    return found.instead


def test_what_keeps_its_promise_says_nothing() -> None:
    """Kernels in fp16 as `fused`, and in fp8 as both."""
    assert [owned("fp16", 3, "fp16"), owned("fp8", 3, "fp8"), owned("fp8", 3, "fp16")] == [""] * 3


@pytest.mark.parametrize(
    ("kernels", "details", "said"),
    [
        (0, {"not_rewritten": "5 axes"}, "all of it by Inductor, in fp16: 5 axes"),
        (0, {"kernels_barred": "no TMA"}, "all of it by Inductor, in fp16: no TMA"),
        (0, {"refused": {"fp8": "wrong"}}, "all of it by Inductor, in fp16: fp8 was refused: wrong"),
        (0, {"candidates_ms": {"Inductor": 0.0}}, f"all of it by Inductor, in fp16: {NONE_SUITS}"),
        (0, {"candidates_ms": BOTH}, "all of it by Inductor, in fp16: the fastest of what was tried"),
        (6, {"candidates_ms": BOTH}, "6 layers by own kernels, in fp16: the fastest of what was tried"),
    ],
)
def test_fp8_that_has_no_layer_in_fp8_says_what_runs(kernels: int, details: dict[str, Any], said: str) -> None:
    assert owned("fp16", kernels, "fp8", **details) == said


def test_the_report_warns_of_it_first() -> None:
    """Before what the samples show."""
    how = Execution("fp16", instead="all of it by Inductor, in fp16: 5 axes")
    stage = stage_record("fp8", steady_pair(2.0, b="fp8"), execution=how)
    (first, *_) = stage_warnings(stage, 1)
    assert (first.code, first.text) == ("something else ran", "fp8 is all of it by Inductor, in fp16: 5 axes")
    plain = stage_record("fp8", steady_pair(2.0, b="fp8"), execution=Execution("fp8"))
    assert "something else ran" not in [warning.code for warning in stage_warnings(plain, 1)]
