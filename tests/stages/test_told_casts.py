"""Stages that a report has lines for, which cast nothing, tell where they cast what the net makes."""

from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest
import torch

from pipeline.stages import compile as compile_stage
from pipeline.stages import cuda_graph, half
from pipeline.stages.api import Workload
from tests.stages.test_own_values import WithPlaces


@pytest.mark.parametrize("stage", [half, compile_stage, cuda_graph])
def test_a_half_net_tells_whether_it_casts_what_the_net_makes(
    stage: ModuleType, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for the compiler and the graph."""
    graph = SimpleNamespace()
    monkeypatch.setattr(compile_stage, "compile_net", lambda model, *_: model)
    monkeypatch.setattr(compile_stage, "check_possible", lambda _: None)
    monkeypatch.setattr(cuda_graph, "Captured", lambda *_: graph)
    for net, casts in ((WithPlaces().eval(), True), (workload.model, False)):
        device = torch.device("cuda") if stage is cuda_graph else workload.device
        work = replace(workload, model=net, device=device)
        assert stage.build(work, dtype="bf16").execution.casts_own_values is casts
