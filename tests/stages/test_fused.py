"""The stage `fused` beside a GPU that is made up: the faster way runs and is named, and what ran is what is saved."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from models.unet import UNet
from pipeline.compiler.artifact import load
from pipeline.compiler.autotune import NothingRunsError, Tuner
from pipeline.compiler.custom_ops import REFERENCE
from pipeline.compiler.errors import UnsupportedError
from pipeline.compiler.exported_net import ExportedNet
from pipeline.compiler.lowering import Plan
from pipeline.records.run_record import Execution
from pipeline.stages.api import Workload, silent
from pipeline.stages.common import net_candidate, not_rewritten, rewritten_net
from pipeline.stages.common.not_rewritten import uncompiled
from pipeline.stages.common.precision import half_net
from pipeline.stages.common.rewritten_net import Rewritten, composed_flops, fastest

CPU = torch.device("cpu")
MOVED = 12345


class Called:
    """What `Captured` is on a GPU: here the net is called each time."""

    def __init__(self, model: Callable[..., Tensor], *_: Tensor) -> None:
        self.model = model
        self.graph = self

    def __call__(self, *inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self.model(*inputs)


def all_by_references(
    net: ExportedNet, scales: Mapping[str, float], _: object, tuner: Tuner, say: Callable[[str], None]
) -> Plan:
    """In the place of `choose`: every layer's tile is its reference, and five were measured."""
    tuner.measured += 5
    layers = [node.name for node in net.module.graph.nodes if "kernel_layer" in str(node.target)]
    return Plan(scales, dict.fromkeys(layers, REFERENCE))


def as_it_is(module: fx.GraphModule, *_: Tensor, mode: str) -> tuple[Callable[..., Tensor], int]:
    """In the place of a compiler."""
    return module, MOVED


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for room in (net_candidate, not_rewritten):
        monkeypatch.setattr(room, "Captured", Called)
    monkeypatch.setattr(rewritten_net, "choose", all_by_references)
    monkeypatch.setattr(net_candidate, "compile_counting_bytes", as_it_is)
    monkeypatch.setattr(rewritten_net, "reaching_views_barred", lambda: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def times(monkeypatch: pytest.MonkeyPatch, *given: float) -> None:
    """What the candidates take at full load, in their order; the last is of what is tried when the others are timed."""

    def full_load_ms(graphs: list[Any]) -> list[float]:
        assert len(graphs) <= len(given)
        return list(given[: len(graphs)])

    monkeypatch.setattr(rewritten_net, "full_load_ms", full_load_ms)
    monkeypatch.setattr(not_rewritten, "full_load_ms", full_load_ms)


def workload(net: nn.Module, folder: Path, progress: Callable[[str], None] = silent) -> Workload:
    batches = list(torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1)).split(2))
    return Workload(model=net.eval(), batches=batches, device=CPU, folder=folder, progress=progress)


def small_unet() -> nn.Module:
    torch.manual_seed(0)
    return UNet(base=16, depth=1)


@pytest.mark.parametrize(
    ("barred", "said"),
    [
        (None, ""),
        (
            "too new",
            "; kernels are barred: too new; by the library as the kernel failed: 1, such as head (no fit)",
        ),
    ],
)
def test_the_record_says_what_matched_and_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, barred: str | None, said: str
) -> None:
    monkeypatch.setattr(rewritten_net, "reaching_views_barred", lambda: barred)
    times(monkeypatch, 1.0, 2.0)
    progress: list[str] = []
    work = workload(small_unet(), tmp_path, progress.append)
    rewritten = Rewritten(work, Tuner(tmp_path), None)
    own = rewritten.candidate({}, "fp16")
    assert own is not None
    own.plan = replace(own.plan, failed={"head": "no fit"} if barred else {})
    stage = fastest(rewritten, [own, rewritten.by_inductor])
    assert stage.description == f"fp16, 6 layers by own kernels, the rest by Inductor, one CUDA graph{said}"
    assert stage.details["kernels_failed"] == own.plan.failed
    how = Execution("fp16", {}, "NHWC", "own kernels", captured=True, fuses=True, own_kernels=6)
    assert stage.execution == replace(how, layer_flops=composed_flops(rewritten.net))
    assert stage.compile_facts is not None
    assert stage.compile_facts().candidates_measured == 5
    assert stage.details["kernels_barred"] == (barred or "")
    assert stage.details["candidates_ms"] == {"own kernels": 1.0, "Inductor": 2.0}
    assert stage.details["passes"]["fold_head"] == ["decoder.0.3"]
    assert list(stage.details["choices"].values()) == [REFERENCE] * 6
    assert stage.traffic is not None
    assert stage.traffic(work.batches[0]) == (MOVED, "Inductor")
    assert progress == ["exporting the net", "6 layers by own kernels, the rest by Inductor", "all of it by Inductor"]
    with torch.no_grad():
        assert torch.allclose(stage.run(work.batches[1]), work.model(work.batches[1]), atol=1e-2)


def test_where_inductor_alone_is_faster_it_runs_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its graph has none of the project's operations, whatever the kernels' passes did to the net afterwards."""
    times(monkeypatch, 2.0, 1.0)
    work = workload(small_unet(), tmp_path)
    rewritten = Rewritten(work, Tuner(tmp_path), None, "never")
    stage = fastest(rewritten, [rewritten.candidate({}, "fp16"), rewritten.by_inductor])
    assert stage.description == "fp16, all by Inductor, one CUDA graph"
    assert stage.execution == Execution("fp16", {}, "NHWC", "Inductor", captured=True, fuses=True, own_kernels=0)
    assert stage.details["choices"] == {}
    assert stage.save is None
    assert rewritten.by_inductor is not None
    assert stage.run is rewritten.by_inductor.captured
    module = rewritten.by_inductor.call
    assert isinstance(module, fx.GraphModule)
    targets = " ".join(str(node.target) for node in module.graph.nodes)
    assert "unet_ladder" not in targets
    assert "kernel_layer" not in targets
    assert "batch_norm" not in targets
    with torch.no_grad():
        assert torch.allclose(stage.run(work.batches[1]), work.model(work.batches[1]), atol=1e-2)


def test_what_ran_is_saved_and_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 1.0, 2.0)
    work = workload(small_unet(), tmp_path)
    rewritten = Rewritten(work, Tuner(tmp_path), None)
    stage = fastest(rewritten, [rewritten.candidate({}, "fp16"), rewritten.by_inductor])
    assert stage.save is not None
    written = stage.save(tmp_path / "artefact")
    assert {path.name for path in written} == {"net.pt2", "about.json"}
    with torch.no_grad():
        assert torch.equal(load(written[0].parent)(work.batches[0]), stage.run(work.batches[0]))


def test_a_candidate_that_cannot_be_built_or_is_wrong_is_refused_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Plan:
        raise NothingRunsError("conv3x3: none of 9 candidates ran\nand more")

    work = workload(small_unet(), tmp_path)
    rewritten = Rewritten(work, Tuner(tmp_path), None, "never")
    assert rewritten.by_inductor is not None
    monkeypatch.setattr(rewritten_net, "choose", fail)
    assert rewritten.candidate({}, "fp16") is None
    monkeypatch.setattr(rewritten_net, "choose", all_by_references)
    monkeypatch.setattr(
        net_candidate, "compile_counting_bytes", lambda module, *_, mode: (lambda x: 2 * module(x), MOVED)
    )
    assert rewritten.candidate({}, "fp8") is None
    stage = fastest(rewritten, [None, rewritten.by_inductor])
    failed = "NothingRunsError: conv3x3: none of 9 candidates ran"
    assert stage.details["refused"].keys() == {"fp16", "fp8"}
    assert stage.details["refused"]["fp16"] == failed
    wrong = stage.details["refused"]["fp8"]
    told = r"its logits are 1 off those of the net by Inductor \(relative L2\), and 1 off those in fp32, .*"
    assert re.fullmatch(f"WrongAnswerError: {told}", wrong)
    assert stage.description == (
        f"fp16, all by Inductor, one CUDA graph; fp16 was refused: {failed}; fp8 was refused: {wrong}"
    )


def test_where_no_candidate_can_be_built_the_half_net_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, mode: str) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(net_candidate, "compile_counting_bytes", fail)
    work = workload(small_unet(), tmp_path)
    rewritten = Rewritten(work, Tuner(tmp_path), "no TMA")
    assert rewritten.by_inductor is None
    stage = fastest(rewritten, [rewritten.by_inductor])
    assert stage.description == "fp16 half net in one CUDA graph: RuntimeError: no compiler here"


def test_a_net_without_a_layer_for_the_kernels_has_one_candidate(tmp_path: Path) -> None:
    work = workload(nn.Sequential(nn.AvgPool2d(2), nn.Upsample(scale_factor=2), nn.Softplus()), tmp_path)
    rewritten = Rewritten(work, Tuner(tmp_path), None, "never")
    stage = fastest(rewritten, [rewritten.candidate({}, "fp16"), rewritten.by_inductor])
    assert stage.details["candidates_ms"] == {"Inductor": 0.0}
    assert stage.execution is not None
    assert stage.execution.own_kernels == 0


def test_a_net_that_cannot_be_exported_runs_as_the_half_net_and_says_so(tmp_path: Path) -> None:
    class Deciding(nn.Module):
        def forward(self, batch: Tensor) -> Tensor:
            return batch if float(batch.sum()) > 0 else -batch

    work = workload(Deciding(), tmp_path)
    with pytest.raises(UnsupportedError) as caught:
        Rewritten(work, Tuner(tmp_path), None)
    stage = uncompiled(half_net(work, torch.float16), work, str(caught.value))
    assert "half net in one CUDA graph" in stage.description
    assert stage.details["not_rewritten"] == str(caught.value)
    assert stage.save is None
    assert stage.run(work.batches[0]).dtype == torch.float16
