"""On a GPU that none of the kernels runs on `fused` composes up-samplings all the same, by the library and Inductor."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

from models.unet import UNet
from pipeline.compiler.artifact import load
from pipeline.compiler.autotune import Tuner
from pipeline.stages import fused
from pipeline.stages.api import Runner, Workload
from pipeline.stages.common import net_candidate, rewritten_net
from tests.stages.test_fused import MOVED, as_it_is, no_gpu, small_unet, times, workload

__all__ = ["no_gpu"]  # a fixture

BARRED = "compute capability 7.5 has no asynchronous copies to shared memory: they came with 8.0"
INDUCTOR, REWRITTEN = "Inductor", "Inductor of the rewritten net"


@pytest.fixture(autouse=True)
def turing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU as a T4 is; nothing may be compiled for a kernel, nor a layer's tiles be chosen."""

    def no_kernels(*_: object) -> Any:
        raise AssertionError

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(rewritten_net, "programs_of", no_kernels)
    monkeypatch.setattr(rewritten_net, "choose", no_kernels)


def built(work: Workload, folder: Path) -> Runner:
    return fused.rewritten_or_not(work, Tuner(folder), "never")


def test_the_composed_net_runs_where_it_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reason and what ran is said; what is saved runs again; a second build makes the winner alone."""
    times(monkeypatch, 2.0, 1.0)
    work = workload(small_unet(), tmp_path)
    stage = built(work, tmp_path)
    assert stage.description == f"fp16, all by {REWRITTEN}, one CUDA graph; kernels are barred: {BARRED}"
    assert stage.details["candidates_ms"] == {INDUCTOR: 2.0, REWRITTEN: 1.0}
    assert stage.details["kernels_barred"] == BARRED
    assert stage.details["passes"]["compose_by_library"] == ["decoder.0.0"]
    assert list(stage.details["choices"].values()) == ["library"]
    how = stage.execution
    assert how is not None
    assert (how.provider, how.own_kernels, list(how.layer_flops)) == (INDUCTOR, 0, ["decoder.0.0"])
    with torch.no_grad():
        assert torch.allclose(stage.run(work.batches[1]), work.model(work.batches[1]), atol=1e-2)
        assert stage.save is not None
        saved = load(stage.save(tmp_path / "artefact")[0].parent)
        assert torch.equal(saved(work.batches[0]), stage.run(work.batches[0]))
    times(monkeypatch)
    again = built(work, tmp_path)
    assert (again.details["known"], again.description) == (True, stage.description)


def test_no_kernel_of_the_project_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 2.0, 1.0)
    module = built(workload(small_unet(), tmp_path), tmp_path).uncaptured
    assert isinstance(module, fx.GraphModule)
    targets = " ".join(str(node.target) for node in module.graph.nodes)
    assert "unet_ladder" not in targets
    assert "conv_transpose2d" not in targets


def test_where_inductor_alone_is_faster_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 1.0, 2.0)
    stage = built(workload(small_unet(), tmp_path), tmp_path)
    assert stage.description == f"fp16, all by Inductor, one CUDA graph; kernels are barred: {BARRED}"
    assert stage.details["candidates_ms"] == {INDUCTOR: 1.0, REWRITTEN: 2.0}


def test_a_composed_net_that_is_wrong_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(module: fx.GraphModule, *_: object, mode: str) -> Any:
        composed = any(node.op == "call_module" for node in module.graph.nodes)
        return (lambda x: 2 * module(x), MOVED) if composed else as_it_is(module, mode=mode)

    monkeypatch.setattr(net_candidate, "compile_counting_bytes", wrong)
    stage = built(workload(small_unet(), tmp_path), tmp_path)
    assert stage.details["refused"][REWRITTEN].startswith("WrongAnswerError: its logits are 1 off")
    assert f"kernels are barred: {BARRED}; {REWRITTEN} was refused: " in stage.description


def test_concatenations_are_joined_in_place_where_nothing_is_composed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times(monkeypatch, 2.0, 1.0)
    torch.manual_seed(0)
    work = workload(UNet(base=16, depth=1, upsampling="bilinear"), tmp_path)
    stage = built(work, tmp_path)
    assert stage.details["candidates_ms"].keys() == {INDUCTOR, REWRITTEN}
    assert stage.details["choices"] == {}
    module = stage.uncaptured
    assert isinstance(module, fx.GraphModule)
    assert not module.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)
    with torch.no_grad():
        assert torch.allclose(stage.run(work.batches[1]), work.model(work.batches[1]), atol=1e-2)


def test_a_net_with_nothing_to_rewrite_has_one_candidate(tmp_path: Path) -> None:
    stage = built(workload(nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU()), tmp_path), tmp_path)
    assert stage.details["candidates_ms"] == {INDUCTOR: 0.0}
