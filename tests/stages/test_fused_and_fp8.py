"""What the stages of the project's own kernels do without a GPU: say why not, and decide what stays in fp16."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.compiler.agreement import Budget
from pipeline.compiler.batch import Batch
from pipeline.compiler.ends import NO_CLASS, Classes
from pipeline.compiler.fp8_build import keep_for, largest
from pipeline.compiler.graph.exported_net import ExportedNet, export
from pipeline.compiler.graph.fp8_values import quantisable
from pipeline.compiler.passes import FOR_ANY_BACKEND, FOR_THE_KERNELS, rewrite
from pipeline.inputs.datasets import load_dataset
from pipeline.stages import fp8, fused
from tests.stages.conftest import SIZE, small_net

Made = tuple[ExportedNet, dict[str, float], list[Batch]]


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The trained small net with its layers, and the largest of its values."""
    workload = small_net(tmp_path_factory.mktemp("small"))
    before = {name: tensor.clone() for name, tensor in workload.model.state_dict().items()}
    with torch.no_grad():
        net = export(workload.model, workload.batches[0], torch.float32)
        rewrite(net, [*FOR_ANY_BACKEND, *FOR_THE_KERNELS])
        seen = largest(net, workload.batches)
    after = workload.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    return net, seen, workload.inputs


def test_the_passes_say_what_they_matched(rewritten: Made) -> None:
    passes = rewritten[0].matched
    assert passes["fold_head"] == ["decoder.3.3"]
    assert len(passes["fold_batch_norm"]) == 18
    assert len(passes["pool_where_it_is_made"]) == len(passes["compose_upsampling"]) == 4


@torch.no_grad()
def test_no_layer_is_kept_where_the_masks_are_within_the_budget(rewritten: Made) -> None:
    net, seen, batches = rewritten
    assert keep_for(net, seen, batches[:1], Budget(1.0, 1.0)) == ([], {})
    kept, taken = keep_for(net, seen, batches[:1], Budget(2e-3, 1.0))
    assert set(kept) <= set(quantisable(net))
    assert all(name in taken for name in kept)


@pytest.mark.gpu
@pytest.mark.timeout(900)  # each is tuned and compiled, and compiled again
@pytest.mark.parametrize("stage", [fused, fp8], ids=["fused", "fp8"])
def test_on_a_gpu_classes_are_those_of_the_network_without_ends(stage: Any, tmp_path: Path) -> None:
    small, images = small_net(tmp_path), load_dataset("samples", None, None, SIZE, 3).images
    batches, device = [batch.cuda() for batch in small.batches], torch.device("cuda")
    work = replace(small, model=small.model.cuda(), batches=batches, device=device, images=images)
    options: dict[str, Any] = {"tuning_folder": str(tmp_path / "tiles"), "inductor_search": "never"}
    plain, whole = stage.build(work, **options), stage.build(work, **options, uint8_in=True, classes_out=True)
    given = work.called_with(whole.ends).batches
    assert given[0].dtype == torch.uint8
    for mode in (torch.inference_mode, torch.no_grad, nullcontext):
        for image, batch in zip(given, batches, strict=True):
            with mode():
                assert torch.equal(whole.run(image), Classes()(plain.run(batch)))
    only_classes = stage.build(work, **options, classes_out=True)
    if stage is fused:
        spoilt = batches[0].clone()
        spoilt[0, :, 40, 40] = torch.nan
        assert (only_classes.run(spoilt) == NO_CLASS).any()
    assert not (only_classes.run(batches[0]) == NO_CLASS).any()
