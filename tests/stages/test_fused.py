"""The stage `fused` beside a GPU that is made up: what runs is said, and saved only where it is what ran."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from models.unet import UNet
from pipeline.compiler.artifact import load
from pipeline.compiler.autotune import Tuner
from pipeline.compiler.graph import UnsupportedError
from pipeline.compiler.kernel_layer import Backend
from pipeline.compiler.lowering import Program
from pipeline.compiler.quantize import Precision
from pipeline.records.run_record import Execution
from pipeline.stages.api import Workload
from pipeline.stages.common import rewritten_net

CPU = torch.device("cpu")


class Called:
    """What `Captured` is on a GPU: here the net is called each time."""

    def __init__(self, model: Callable[[Tensor], Tensor], batch: Tensor) -> None:
        self.model = model

    def __call__(self, batch: Tensor) -> Tensor:
        with torch.no_grad():
            return self.model(batch)


@pytest.fixture(autouse=True)
def no_cuda_graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(rewritten_net, "Captured", Called)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def workload(net: nn.Module, folder: Path) -> Workload:
    batches = list(torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1)).split(2))
    return Workload(model=net.eval(), batches=batches, device=CPU, folder=folder)


def program(work: Workload, choice: str) -> tuple[Program, dict[str, list[str]]]:
    graph, passes = rewritten_net.rewritten(work)
    ready = Program(graph, Precision("fp32"), CPU)
    return Program(graph, ready.precision, CPU, dict.fromkeys(ready.layers, choice)), passes


class Elu(nn.Sequential):
    """A net that isn't rewritten whole."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 16, 3, padding=1), nn.ELU(), nn.Conv2d(16, 2, 1))


@pytest.mark.parametrize(
    ("barred", "said"), [(None, ""), ("too new a Triton", "; the fastest kernels are barred: too new a Triton")]
)
def test_the_record_says_what_matched_and_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, barred: str | None, said: str
) -> None:
    monkeypatch.setattr(rewritten_net, "missing", lambda: barred)
    work = workload(UNet(base=16, depth=1), tmp_path)
    ready, passes = program(work, Backend.REFERENCE)
    stage = rewritten_net.runner(
        work, ready, {"passes": passes}, None, "fp16", rewritten_net.executed(ready, "fp16"), 5
    )
    assert stage.description == f"fp16, 7 layers by own kernels, 0 by the library, one CUDA graph{said}"
    assert stage.execution == Execution("fp16", {}, "NHWC", "own kernels", captured=True, fuses=True, own_kernels=7)
    assert stage.compile_facts is not None
    assert stage.compile_facts().candidates_measured == 5
    assert stage.details["kernels_barred"] == (barred or "")
    assert stage.details["left_to_torch"] == []
    assert stage.details["passes"]["join_without_copy"] == ["cat"]
    assert stage.details["choices"] == dict.fromkeys(ready.layers, Backend.REFERENCE)
    with torch.no_grad():
        assert torch.allclose(stage.run(work.batches[1]), work.model(work.batches[1]), atol=1e-4)


def test_what_ran_is_saved_and_runs_again(tmp_path: Path) -> None:
    work = workload(UNet(base=16, depth=1), tmp_path)
    ready, _ = program(work, Backend.REFERENCE)
    stage = rewritten_net.runner(work, ready, {}, None, "fp16", rewritten_net.executed(ready, "fp16"), 0)
    assert stage.save is not None
    written = stage.save(tmp_path / "artefact")
    assert {path.name for path in written} == {"graph.json", "weights.safetensors"}
    with torch.no_grad():
        assert torch.equal(load(written[0].parent, CPU)(work.batches[0]), stage.run(work.batches[0]))


def test_a_gpu_without_the_kernels_runs_by_the_library_and_says_why(tmp_path: Path) -> None:
    work = workload(UNet(base=16, depth=1, upsampling="bilinear"), tmp_path)
    graph, _ = rewritten_net.rewritten(work)
    given = Program(graph, Precision("fp32"), CPU)
    ready = rewritten_net.tuned(given, work.batches[0], Tuner(tmp_path), "no TMA")
    assert set(ready.choices) == set(given.layers)
    assert set(ready.choices.values()) == {Backend.LIBRARY}
    stage = rewritten_net.runner(work, ready, {}, "no TMA", "fp16", rewritten_net.executed(ready, "fp16"), 0)
    assert stage.details["kernels_barred"] == "no TMA"
    assert stage.description.startswith("fp16, 0 layers by own kernels, 8 by the library")
    with torch.no_grad():
        assert torch.allclose(stage.run(work.batches[0]), work.model(work.batches[0]), atol=1e-4)


@pytest.mark.parametrize("half_wins", [True, False])
def test_where_much_is_left_to_torch_the_faster_net_runs_and_is_named(
    half_wins: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    work = workload(Elu(), tmp_path)
    half = Called(work.model, work.batches[0])
    monkeypatch.setattr(rewritten_net, "faster_half", lambda work, ours: half if half_wins else None)
    ready, _ = program(work, Backend.REFERENCE)
    stage = rewritten_net.runner(work, ready, {}, None, "fp16", rewritten_net.executed(ready, "fp16"), 0)
    assert stage.details["left_to_torch"] == ["aten.elu.default", "conv2d"]
    assert stage.description.startswith("fp16 half net in one CUDA graph") is half_wins
    assert (stage.run is half) is half_wins
    assert (stage.save is None) is half_wins  # the rewritten net isn't what ran


def test_a_net_that_cannot_be_rewritten_runs_as_the_half_net_and_says_so(tmp_path: Path) -> None:
    class Deciding(nn.Module):
        def forward(self, batch: Tensor) -> Tensor:
            return batch if float(batch.sum()) > 0 else -batch

    work = workload(Deciding(), tmp_path)
    with pytest.raises(UnsupportedError) as caught:
        rewritten_net.rewritten(work)
    stage = rewritten_net.half_instead(work, str(caught.value))
    assert "half net in one CUDA graph" in stage.description
    assert stage.details["not_rewritten"] == str(caught.value)
    assert stage.save is None
    assert stage.run(work.batches[0]).dtype == torch.float16
