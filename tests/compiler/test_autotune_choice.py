"""For each layer the fastest candidate that is right is chosen, and remembered."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pipeline.compiler import choose
from pipeline.compiler.autotune import NothingRunsError, Tuner
from pipeline.compiler.kernel_layer import Backend, KernelLayer
from pipeline.compiler.lowering import Program
from pipeline.compiler.passes import rewrite
from pipeline.compiler.quantize import Precision
from pipeline.kernels import upsample2x
from pipeline.kernels.common.epilogue import Outputs
from pipeline.kernels.conv3x3 import conv3x3_triton
from tests.compiler.nets import CPU, classic, image, traced
from tests.kernels.examples import DEVICE

SMALL = conv3x3_triton.Tile(4, 8, 16, 16, swap=False)


def program() -> Program:
    graph = traced(classic(depth=1), image(1, 3, 16, 16))
    rewrite(graph)
    return Program(graph, Precision("fp16"), CPU)


def fakes(monkeypatch: pytest.MonkeyPatch, *wrong: str) -> None:
    """Candidates "a" (fastest), "b" and "library"; those in `wrong` answer twice what they should."""
    run = KernelLayer.run

    def run_fake(layer: KernelLayer, x: torch.Tensor, outputs: Outputs, choice: str) -> None:
        run(layer, x, outputs, Backend.REFERENCE)
        if choice in wrong:
            for part in outputs.given.values():
                part.mul_(2)

    monkeypatch.setattr(KernelLayer, "candidates", lambda layer, x, outputs: iter(["a", "b", Backend.LIBRARY]))
    monkeypatch.setattr(KernelLayer, "run", run_fake)


def tuner(folder: Path) -> Tuner:
    """Its clock counts up, so that of any candidates the first is the fastest."""
    ticks = iter(range(10_000))

    def clock(call: Callable[[], None]) -> float:
        call()
        return float(next(ticks))

    return Tuner(folder, clock)


@torch.no_grad()
def test_the_fastest_is_chosen_for_every_layer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ready = program()
    fakes(monkeypatch)
    assert choose.choose(ready, image(1, 3, 16, 16), tuner(tmp_path)) == dict.fromkeys(ready.layers, "a")


@torch.no_grad()
def test_a_fast_candidate_that_is_wrong_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ready = program()
    fakes(monkeypatch, "a")
    assert choose.choose(ready, image(1, 3, 16, 16), tuner(tmp_path)) == dict.fromkeys(ready.layers, "b")


@torch.no_grad()
def test_where_all_are_wrong_none_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ready = program()
    fakes(monkeypatch, "a", "b", Backend.LIBRARY)
    with pytest.raises(NothingRunsError, match="no candidate gives the reference's answer"):
        choose.choose(ready, image(1, 3, 16, 16), tuner(tmp_path))


@torch.no_grad()
def test_a_second_choice_measures_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ready = program()
    fakes(monkeypatch)
    first, second = tuner(tmp_path), tuner(tmp_path)
    assert choose.choose(ready, image(1, 3, 16, 16), first) == choose.choose(ready, image(1, 3, 16, 16), second)
    assert first.measured > 0
    assert second.measured == 0


@torch.no_grad()
def test_a_program_runs_by_the_kernels_that_were_chosen() -> None:
    """The same answer by a kernel's tile as by the references: in Triton's interpreter, or on the GPU."""
    ready = Program(program().graph, Precision("fp16"), DEVICE)
    batch = image(1, 3, 16, 16).to(DEVICE)
    tiles = {name: SMALL for name, layer in ready.layers.items() if layer.op.name == "conv3x3"}
    assert len(tiles) == 5
    by_tiles = choose.with_choices(ready, tiles)(batch)
    wanted = ready(batch)
    assert float((by_tiles - wanted).norm() / wanted.norm()) < 5e-3


def test_infinities_must_be_where_the_reference_has_them() -> None:
    finite, infinite = torch.ones(4), torch.tensor([1.0, torch.inf, 1.0, 1.0])
    assert choose.near(infinite, infinite)
    assert not choose.near(finite, infinite)
    assert not choose.near(torch.full((4,), torch.nan), finite)
    assert choose.near(finite * 1.001, finite)
    assert not choose.near(finite * 1.1, finite)


@pytest.mark.parametrize("upsampling", ["transposed", "bilinear"])
@torch.no_grad()
def test_the_library_gives_the_references_answer(upsampling: str) -> None:
    """It is what runs on GPUs that the kernels don't run on."""
    net, batch = classic(upsampling=upsampling), image(1, 3, 32, 48)
    graph = traced(net, batch)
    rewrite(graph)
    ready = Program(graph, Precision("fp32"), CPU)
    by_library = choose.with_choices(ready, dict.fromkeys(ready.layers, Backend.LIBRARY))(batch)
    assert float((by_library - net(batch)).norm() / net(batch).norm()) < 1e-3


@torch.no_grad()
def test_bilinear_upsampling_runs_by_its_kernel(tmp_path: Path) -> None:
    """In Triton's interpreter, or on the GPU."""
    graph = traced(classic(upsampling="bilinear", depth=1), image(1, 3, 16, 16))
    rewrite(graph)
    ready = Program(graph, Precision("fp16"), DEVICE)
    by_kernel = choose.with_choices(
        ready, {name: upsample2x.Tile() for name, layer in ready.layers.items() if layer.op.name == "upsample2x"}
    )
    assert len(by_kernel.choices) == 1
    batch = image(1, 3, 16, 16).to(DEVICE)
    wanted = ready(batch)
    assert float((by_kernel(batch) - wanted).norm() / wanted.norm()) < 5e-3


def test_the_library_s_timing_is_put_back_even_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)

    def fail() -> None:
        with choose.untimed_library():
            assert not torch.backends.cudnn.benchmark
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.backends.cudnn.benchmark


@torch.no_grad()
def test_a_program_that_was_tried_is_freed_at_once() -> None:
    """Nothing in it refers back to it: no collection is needed before its weights' memory serves again."""
    ready = program()
    ready(image(1, 3, 16, 16))
    seen = weakref.ref(ready)
    gc.disable()
    try:
        del ready
        assert seen() is None
    finally:
        gc.enable()
