"""A net that can't be rewritten, or compiled, or captured, runs all the same, and the record says how and why."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler.autotune import Tuner
from pipeline.compiler.budget import Budget
from pipeline.compiler.errors import UnsupportedError
from pipeline.stages import fp8
from pipeline.stages.common import net_candidate, not_rewritten, rewritten_net
from pipeline.stages.common.not_rewritten import by_inductor_alone
from pipeline.stages.common.rewritten_net import Rewritten
from tests.stages.test_earlier_build import exported_once
from tests.stages.test_fused import no_gpu, small_unet, workload

__all__ = ["exported_once", "no_gpu"]  # fixtures


class Deciding(nn.Module):
    """Looks at its values: no single graph."""

    def forward(self, batch: Tensor) -> Tensor:
        return batch if float(batch.sum()) > 0 else -batch


def failing(text: str) -> Callable[..., Any]:
    """In the place of what fails."""

    def fail(*_: object, **__: object) -> Any:
        raise RuntimeError(text)

    return fail


def test_a_net_with_graph_breaks_runs_as_compile_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncaptured: a graph would hold one branch."""
    monkeypatch.setattr(net_candidate, "compile_counting_bytes", failing("graph break"))
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    work = workload(Deciding(), tmp_path)
    stage = by_inductor_alone(work, "torch can't export it", Tuner(tmp_path), "never")
    why = "torch can't export it; as one graph by Inductor: RuntimeError: graph break"
    assert stage.description == f"fp16, by Inductor, with graph breaks: {why}"
    assert stage.details == {"not_rewritten": why}
    assert stage.execution is not None
    assert (stage.execution.provider, stage.execution.captured) == ("Inductor", False)
    assert torch.equal(stage.run(-work.batches[0]), stage.run(work.batches[0]))


def test_where_nothing_compiles_or_captures_it_the_half_net_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_candidate, "compile_counting_bytes", failing("graph break"))
    monkeypatch.setattr(torch, "compile", lambda _: failing("no compiler"))
    work = workload(Deciding(), tmp_path)
    stage = by_inductor_alone(work, "no export", Tuner(tmp_path), "never")
    why = "no export; as one graph by Inductor: RuntimeError: graph break; in pieces: RuntimeError: no compiler"
    assert stage.description == f"fp16 half net in one CUDA graph: {why}"
    monkeypatch.setattr(not_rewritten, "Captured", failing("not while capturing"))
    stage = by_inductor_alone(work, "no export", Tuner(tmp_path), "never")
    assert stage.description == f"fp16 half net uncaptured: {why}; captured: RuntimeError: not while capturing"
    assert stage.execution is not None
    assert not stage.execution.captured
    assert stage.run(work.batches[0]).dtype == torch.float16


def test_a_rewrite_that_fails_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewritten_net, "rewrite", failing("no such node"))
    with pytest.raises(UnsupportedError, match="a rewrite failed: RuntimeError: no such node"):
        Rewritten(workload(small_unet(), tmp_path), Tuner(tmp_path), None)


def test_a_net_whose_values_cannot_be_measured_stays_in_fp16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8, "largest", failing("a value without elements"))
    rewritten = Rewritten(workload(small_unet(), tmp_path), Tuner(tmp_path), None)
    assert fp8.sensitivity_or_why(rewritten, 4, "auto", Budget(1.0, 1.0)) is None
    assert rewritten.refused == {"fp8": "RuntimeError: a value without elements"}
