"""What the stages of the project's own kernels do without a GPU: say why not, and decide what stays in fp16."""

from dataclasses import replace

import pytest
import torch

from pipeline.compiler.calibrate import Budget, largest, quantisable
from pipeline.compiler.lowering import Program
from pipeline.compiler.quantize import Precision
from pipeline.stages import Skip, fp8, fused
from pipeline.stages.api import Workload
from pipeline.stages.common import rewritten_net


@pytest.mark.parametrize("stage", [fused, fp8], ids=["fused", "fp8"])
def test_without_a_gpu_it_is_skipped_with_a_reason(stage: object, workload: Workload) -> None:
    with pytest.raises(Skip, match="need a CUDA GPU"):
        stage.build(workload)  # type: ignore[attr-defined]


def test_the_passes_say_what_they_matched(workload: Workload) -> None:
    before = {name: tensor.clone() for name, tensor in workload.model.state_dict().items()}
    _, passes = rewritten_net.rewritten(workload)
    assert passes["fold_head"] == ["head"]
    assert len(passes["fold_batch_norm"]) == 18
    assert len(passes["pool_where_it_is_made"]) == len(passes["join_without_copy"]) == 4
    after = workload.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@torch.no_grad()
def test_layers_are_kept_as_asked(workload: Workload) -> None:
    graph, _ = rewritten_net.rewritten(workload)
    seen = largest(Program(graph, Precision("fp32"), workload.device), workload.batches)
    ask, budget = (graph, seen, workload), Budget(0.0, 0.0)
    assert fp8.layers_to_keep(*ask, "none", budget) == ([], {})
    assert fp8.layers_to_keep(*ask, "encoder.0.3", budget) == (["encoder.0.3"], {})
    assert fp8.layers_to_keep(*ask, ["encoder.0.3", "head"], budget) == (["encoder.0.3", "head"], {})
    with pytest.raises(ValueError, match=r"keep_fp16=decoder.9: no such layer; choose among .*encoder\.0\.3"):
        fp8.layers_to_keep(*ask, ["decoder.9"], budget)


@torch.no_grad()
def test_no_layer_is_kept_where_the_masks_are_within_the_budget(workload: Workload) -> None:
    one = replace(workload, verified=1)
    graph, _ = rewritten_net.rewritten(one)
    seen = largest(Program(graph, Precision("fp32"), one.device), one.batches)
    assert fp8.layers_to_keep(graph, seen, one, "auto", Budget(1.0, 1.0)) == ([], {})
    kept, gains = fp8.layers_to_keep(graph, seen, one, "auto", Budget(2e-3, 1.0))
    assert set(kept) <= set(quantisable(graph))
    assert all(name in gains for name in kept)
