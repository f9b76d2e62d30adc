"""For each layer the fastest candidate that is right is chosen, and remembered."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from pipeline.compiler import custom_ops, ops
from pipeline.compiler.custom_ops import OUTPUTS, KernelCall
from pipeline.compiler.fp8_build import largest
from pipeline.compiler.graph.fp8_values import scales
from pipeline.compiler.graph.lowering import Plan
from pipeline.compiler.network_calls import untimed_library
from pipeline.compiler.tuning import choose
from pipeline.compiler.tuning.autotune import NothingRunsError, Tuner
from pipeline.compiler.tuning.choose import LIBRARY, Choice, MeasuredLayer
from pipeline.kernels import conv3x3, upsample2x
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.conv3x3 import conv3x3_triton
from tests.compiler.nets import classic, image
from tests.compiler.rewriting import Exported, called, layers, lowered, own_calls, rewritten, rewritten_from
from tests.kernels.examples import DEVICE, FP8
from tests.process_state import own_switches

SMALL = conv3x3_triton.Tile(4, 8, 16, 16)


said: list[str] = []


@dataclass(frozen=True)
class Tile:
    kernel: ClassVar[str] = "one of two"
    name: str


@pytest.fixture(scope="module")
def made() -> Exported:
    return rewritten("one level, batch 3")


@pytest.fixture(autouse=True)
def a_kernel_of_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ops.TILES, Tile.kernel, Tile)


def fakes(monkeypatch: pytest.MonkeyPatch, *wrong: str, library: bool = True, tiles: str = "ab") -> None:
    """Candidates "a" (fastest), "b" and the library; those in `wrong` answer twice what they should."""
    run = MeasuredLayer.run

    def candidates(_: MeasuredLayer) -> Iterator[object]:
        yield from map(Tile, tiles)
        if library:
            yield LIBRARY

    def run_fake(measured: MeasuredLayer, choice: object) -> None:
        if choice == LIBRARY:
            run(measured, LIBRARY)
        else:
            measured.layer.op.reference(*measured.call.operands)
        if getattr(choice, "name", choice) in wrong:
            for name in OUTPUTS:
                if measured.given[name] is not None:
                    measured.given[name].mul_(2)

    monkeypatch.setattr(MeasuredLayer, "candidates", candidates)
    monkeypatch.setattr(MeasuredLayer, "run", run_fake)


def tuner(folder: Path, step: int = 1) -> Tuner:
    """Its clock counts up, so that of any candidates the first is the fastest; or down by steps of -1: the last."""
    ticks = itertools.count(10_000, step)

    def clock(call: Callable[[], None]) -> float:
        call()
        return float(next(ticks))

    return Tuner(folder, clock)


@torch.no_grad()
def chosen(made: Exported, tuner: Tuner) -> Plan:
    return choose.choose(made.net, {}, made.batch, tuner, said.append)


def test_the_fastest_is_chosen_for_every_layer(made: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fakes(monkeypatch)
    said.clear()
    plan = chosen(made, tuner(tmp_path))
    assert said[0] == "tiles of encoder.0.0 (1 of 6 layers)"
    assert (len(said), said[-1]) == (6, "tiles of decoder.0.3 (6 of 6 layers)")
    assert list(plan.tiles) == list(layers(made.net))
    assert {ops.tile_of(text) for text in plan.tiles.values()} == {Tile("a")}
    assert list(plan.by_library) == []


def test_a_fast_wrong_candidate_is_left_out(made: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fakes(monkeypatch, "a")
    assert {ops.tile_of(text) for text in chosen(made, tuner(tmp_path)).tiles.values()} == {Tile("b")}


def test_where_all_are_wrong_none_is_taken(made: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fakes(monkeypatch, "a", "b", LIBRARY)
    with pytest.raises(NothingRunsError, match="no candidate gives the reference's answer"):
        chosen(made, tuner(tmp_path))


def test_a_second_choice_measures_nothing(made: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fakes(monkeypatch)
    first, second = tuner(tmp_path), tuner(tmp_path)
    assert chosen(made, first) == chosen(made, second)
    assert first.measured > 0
    assert second.measured == 0


def test_a_layer_of_the_library_is_lowered_so(made: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And the net answers the same; for the library is only a candidate that computes the same."""
    fakes(monkeypatch, "a", "b")
    plan = chosen(made, tuner(tmp_path))
    assert (list(plan.tiles), list(plan.by_library)) == ([], list(layers(made.net)))
    graph = lowered(made.net, by_library=plan.by_library)
    assert own_calls(graph) == []
    assert called(graph).count("LibraryLayer") == len(layers(made.net))
    assert made.error(graph) < 1e-3


def test_a_kernel_that_lost_or_was_not_tried_is_fine(
    made: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The library then runs the layer by right."""
    for tiles in ("ab", ""):
        fakes(monkeypatch, tiles=tiles)
        plan = chosen(made, tuner(tmp_path / f"tiles {tiles}", -1))
        assert (list(plan.by_library), plan.failed) == (list(layers(made.net)), {})


@pytest.mark.parametrize("fault", ["wrong", "refused"])
def test_a_failed_kernel_is_told_with_why(
    fault: str, made: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A library without a tile beside it hides a fault; a second build finds the reason on disk."""
    why = {"wrong": "not the reference's answer", "refused": "the epilogue must fold nothing"}[fault]
    names = [layer.name for layer in layers(made.net).values()]
    right = MeasuredLayer.run
    fakes(monkeypatch, *("ab" if fault == "wrong" else ""))
    answers = MeasuredLayer.run

    def run(measured: MeasuredLayer, choice: Choice) -> None:
        if fault == "refused" and choice != LIBRARY:
            raise ValueError(why)
        answers(measured, choice)

    monkeypatch.setattr(MeasuredLayer, "run", run)
    for _ in range(2):
        plan = chosen(made, tuner(tmp_path))
        assert list(plan.by_library) == list(layers(made.net))
        assert plan.failed == dict.fromkeys(names, f"Tile(name='b'): {why}")
    monkeypatch.setattr(MeasuredLayer, "run", right)
    fakes(monkeypatch)
    assert chosen(made, tuner(tmp_path / "mended")).failed == {}


def test_layers_of_other_ends_are_measured_apart(
    made: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By the shapes, the types, the pool, the head, and the activation; equal ones share a choice."""
    fakes(monkeypatch)
    used = tuner(tmp_path)
    chosen(made, used)
    known = used.read()
    assert len(known) == len(layers(made.net))  # no two of this net are equal
    assert any("pool" in key for key in known)
    assert any("head 2" in key for key in known)
    assert all("relu" in key for key in known)


@torch.no_grad()
def test_the_library_is_a_candidate_without_fp8(
    made: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would need conversions that are kernels of their own."""
    offered: list[tuple[bool, bool]] = []

    def select(measured: MeasuredLayer, _: Tuner) -> str:
        values = [
            *measured.inputs,
            *(part for part in (measured.call.outputs.out, measured.call.outputs.pooled) if part is not None),
        ]
        offered.append((LIBRARY in measured.candidates(), any(part.dtype == FP8 for part in values)))
        measured.layer.op.reference(*measured.call.operands)
        return LIBRARY

    monkeypatch.setattr(choose, "select", select)
    kept = ["bottleneck.3", "decoder.0.0"]
    known = scales(made.net, kept, largest(made.net, [made.batch]))
    choose.choose(made.net, known, made.batch, tuner(tmp_path), said.append)
    assert set(offered) == {(True, False), (False, True)}


@torch.no_grad()
def test_a_kernel_s_tiles_give_its_reference_s_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In Triton's interpreter, or on the GPU: whatever the tuner takes was compared with the reference."""
    batch = image(1, 3, 8, 8).to(DEVICE)
    net = rewritten_from(classic(depth=1, upsampling="bilinear").to(DEVICE), batch, torch.float16)
    tiles = {"conv3x3": SMALL, "upsample2x": upsample2x.Tile()}

    def candidates(measured: MeasuredLayer) -> Iterator[object]:
        yield tiles.get(measured.layer.op.name, LIBRARY)

    monkeypatch.setattr(MeasuredLayer, "candidates", candidates)
    with own_switches():  # torch names its compiler's cache at the first launch of a kernel
        plan = choose.choose(net, {}, batch, tuner(tmp_path), said.append)
    assert sorted(ops.tile_of(text) == SMALL for text in plan.tiles.values()) == [False, *[True] * 5]


def test_layers_that_store_the_same_logits_of_other_channels_are_measured_apart() -> None:
    """Where the output is not stored, only the weight tells how many channels the head reads."""

    def call(outer: int) -> KernelCall:
        head = Head(torch.zeros(2, outer), torch.zeros(2))
        outputs = Outputs(logits=torch.zeros(1, 2, 8, 8))
        return KernelCall(image(1, 8, 8, 16), torch.zeros(9, outer, 16), Epilogue(head=head), outputs)

    assert call(16).key(conv3x3.OP) == call(16).key(conv3x3.OP) != call(32).key(conv3x3.OP)


def test_a_tile_is_checked_on_values_of_either_sign_in_the_same_layout() -> None:
    x = image(2, 16, 8, 8).abs().contiguous(memory_format=torch.channels_last)[:, :8]
    signed = choose.with_random_signs(x)
    assert torch.equal(signed.abs(), x)
    assert bool((signed < 0).any())
    assert bool((signed > 0).any())


def test_the_library_s_timing_is_put_back_even_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)

    def fail() -> None:
        with untimed_library():
            assert not torch.backends.cudnn.benchmark
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.backends.cudnn.benchmark


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "operation"),
    [("late windows, depthwise, squeeze and excitation", "excitation"), ("norms up to the logits", "norm_factors")],
)
def test_a_wrong_kernel_without_tiles(
    name: str, operation: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its answer is compared to its reference's, as a tile's is."""
    made, target = rewritten(name), custom_ops.operation(operation)
    by_reference = custom_ops.BY_REFERENCE[target]

    def twice(*given: Any) -> Any:
        answer = by_reference(*given)
        return tuple(2 * part for part in answer) if isinstance(answer, tuple) else 2 * answer

    def by_library(measured: MeasuredLayer, _: Tuner) -> str:
        measured.run(LIBRARY)
        return LIBRARY

    monkeypatch.setattr(choose, "select", by_library)
    assert chosen(made, tuner(tmp_path)).by_library
    monkeypatch.setitem(custom_ops.BY_REFERENCE, target, twice)
    with pytest.raises(NothingRunsError, match=rf"{operation}.default: 0.5 off the reference's answer"):
        chosen(made, tuner(tmp_path))
