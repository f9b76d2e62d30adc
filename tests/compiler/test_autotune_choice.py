"""For each layer the fastest candidate that is right is chosen, and remembered."""

import itertools
import json
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pipeline.compiler import custom_ops, ops
from pipeline.compiler.custom_ops import OUTPUTS, KernelCall
from pipeline.compiler.fp8_build import largest
from pipeline.compiler.graph.fp8_values import scales
from pipeline.compiler.graph.layers import KernelLayer
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.tuning import choose
from pipeline.compiler.tuning.autotune import NothingRunsError, Tuner
from pipeline.compiler.tuning.choose import LIBRARY, Choice, MeasuredLayer
from pipeline.kernels import conv3x3, upsample2x
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.conv3x3 import conv3x3_triton
from tests.compiler.nets import classic, image
from tests.compiler.rewriting import Calls, Exported, layers, rewritten, rewritten_from
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


def test_a_kernel_that_lost_or_was_left_out(made: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for tiles in ("ab", ""):
        fakes(monkeypatch, tiles=tiles)
        plan = chosen(made, tuner(tmp_path / f"tiles {tiles}", -1))
        assert (list(plan.by_library), plan.failed) == (list(layers(made.net)), {})


@pytest.mark.parametrize("fault", ["wrong", "refused"])
def test_a_kernel_s_fault_is_told(fault: str, made: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def test_layers_of_other_ends_are_timed_apart(made: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the shapes, the types, the pool, the head, and the activation; equal ones share a choice."""
    fakes(monkeypatch)
    used = tuner(tmp_path)
    chosen(made, used)
    known = [key for key in used.read() if not key.startswith("library's ")]
    assert len(known) == len(layers(made.net))  # no two of this net are equal
    assert any("pool" in key for key in known)
    assert any("head 2" in key for key in known)
    assert all("relu" in key for key in known)


LEAST = set("convolution slow_conv3d_forward empty permute view unflatten relu_ sum select alias".split())  # noqa: SIM905


class Called(TorchDispatchMode):
    """The names of the operations within."""

    def __enter__(self) -> Self:
        self.names: set[str] = set()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["classic", "bilinear", "volumes", "depthwise", "grouped", "squeeze and excitation"])
@torch.no_grad()
def test_the_least_that_the_library_takes_is_timed(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fakes(monkeypatch)
    made, ran = rewritten(name), list[str]()
    least = KernelLayer.least_by_library

    def noted(layer: KernelLayer, *given: Any) -> None:
        ran.append(layer.name)
        with Called() as called_here:  # type: ignore[no-untyped-call]
            least(layer, *given)
        assert called_here.names <= LEAST  # no copy, which another compiler may not need

    def clock(call: Callable[[], None]) -> float:
        call()
        return 1.0

    monkeypatch.setattr(KernelLayer, "least_by_library", noted)
    multiplying = [layer for layer in layers(made.net).values() if layer.weight is not None]
    for measured in (True, False):
        used = Tuner(tmp_path, clock)
        assert choose.choose(made.net, {}, made.batch, used, said.append).library_ms == len(multiplying)
        assert bool(used.measured) is measured
    assert len(ran) == len(set(ran)) > 0


@torch.no_grad()
def test_the_library_is_one_without_fp8(made: Exported, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offered: list[tuple[bool, bool]] = []

    def select(measured: MeasuredLayer, _: Tuner) -> str:
        outputs = (measured.call.outputs.out, measured.call.outputs.pooled)
        values = [*measured.inputs.values(), *(part for part in outputs if part is not None)]
        offered.append((LIBRARY in measured.candidates(), any(part.dtype == FP8 for part in values)))
        measured.layer.op.reference(*measured.call.operands)
        return LIBRARY

    monkeypatch.setattr(choose, "select", select)
    kept = ["bottleneck.3", "decoder.0.0"]
    known = scales(made.net, kept, largest(made.net, [made.batch]))
    choose.choose(made.net, known, made.batch, tuner(tmp_path), said.append)
    assert set(offered) == {(True, False), (False, True)}


@pytest.mark.parametrize("step", [1, -1])
@torch.no_grad()
def test_tokens_that_are_slower_in_fp8_are_named(step: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In fp16 the library alone multiplies them; it is timed after the tiles, by a clock that goes up, or down."""
    made, taken = rewritten("group norm, SiLU, attention"), ["kept", "mixed.0", "mixed.2"]
    walk = Calls(lower(made.net, Plan()))
    walk.run(made.batch)
    parts = [MeasuredLayer(layer, {**given, "x": x}, []) for layer, x, given in walk.seen if layer.name in taken]
    assert [[*part.candidates()] for part in parts] == 3 * [[LIBRARY]]
    fakes(monkeypatch, library=False)
    known = scales(made.net, [], largest(made.net, [made.batch]))
    plan = choose.choose(made.net, known, made.batch, tuner(tmp_path, step), said.append)
    assert plan.slower == (taken if step < 0 else [])


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


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "operation"),
    [("late windows, depthwise, squeeze and excitation", "excitation"), ("norms up to the logits", "norm_factors")],
)
def test_a_wrong_kernel_of_no_tiles(name: str, operation: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


TIMES = {"slow": 3.0, "fast": 1.0, "middling": 2.0}


def clock(call: Callable[[], None]) -> float:
    ran.clear()
    call()
    return TIMES[ran[0]]


ran: list[str] = []


def run(name: str) -> None:
    if name == "too big":
        raise RuntimeError("out of resource: shared memory\nand more")
    ran.append(name)


def test_a_choice_is_measured_once_and_found_on_disk(tmp_path: Path) -> None:
    assert Tuner(tmp_path, clock).best("conv 64", TIMES, run) == "fast"
    again = Tuner(tmp_path, clock)
    assert again.best("conv 64", TIMES, run) == "fast"
    assert again.measured == 0
    assert again.best("conv 128", ["slow"], run) == "slow"
    assert again.measured == 1


def test_a_choice_that_is_no_longer_offered_is_measured_anew(tmp_path: Path) -> None:
    Tuner(tmp_path, clock).best("conv 64", TIMES, run)
    assert Tuner(tmp_path, clock).best("conv 64", ["slow", "middling"], run) == "middling"


def test_a_candidate_that_cannot_run_is_passed_over_and_the_reason_said(tmp_path: Path) -> None:
    tuner = Tuner(tmp_path, clock)
    assert tuner.best("conv 64", ["too big", "slow"], run) == "slow"
    assert tuner.refused["conv 64"] == "'too big': out of resource: shared memory"
    with pytest.raises(NothingRunsError, match="shared memory"):
        Tuner(tmp_path, clock).best("conv 64", ["too big"], run)


@pytest.mark.parametrize("text", ['{"conv 64": {"cho', '{"conv 64": [1]}', '{"conv 64": {"choice": {}}}', "[]", ""])
def test_a_poisoned_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    Tuner(tmp_path, clock).path().write_text(text)
    assert Tuner(tmp_path, clock).best("conv 64", TIMES, run) == "fast"
    again = Tuner(tmp_path, clock)
    assert (again.best("conv 64", TIMES, run), again.measured) == ("fast", 0)


def test_a_folder_that_cannot_be_used_costs_no_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", Path("/proc/nohome/cache"), Path("~nobody-at-all/x")):
        tuner = Tuner(place, clock)
        assert [tuner.best("conv 64", TIMES, run) for _ in range(2)] == ["fast", "fast"]
        assert tuner.measured == len(TIMES)
        assert tuner.unkept
        assert capsys.readouterr().err.count("can't be kept") == 1


def test_a_file_that_is_not_the_user_s_own_is_not_read(tmp_path: Path) -> None:
    tuner = Tuner(tmp_path, clock)
    poisoned = json.dumps({"conv 64": {"choice": "'slow'"}})
    (tmp_path / "elsewhere").write_text(poisoned)
    tuner.path().symlink_to(tmp_path / "elsewhere")
    assert tuner.best("conv 64", TIMES, run) == "fast"
    tuner.path().unlink()
    tuner.path().write_text(poisoned)
    tuner.path().chmod(0o666)
    assert Tuner(tmp_path, clock).best("conv 64", TIMES, run) == "fast"
    Tuner(tmp_path / "new", clock).best("conv 64", TIMES, run)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_no_choice_is_lost_among_processes(tmp_path: Path) -> None:
    def tune(number: int) -> None:
        for index in range(8):
            Tuner(tmp_path).keep(f"{number}-{index}", {"choice": "fast"})

    writers = [threading.Thread(target=tune, args=(number,)) for number in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(Tuner(tmp_path).read()) == 48
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".lock"]


def test_other_sources_make_other_choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Tuner(tmp_path).path()
    monkeypatch.setattr("pipeline.compiler.tuning.autotune.code_digest", lambda *_: "0" * 64)
    assert Tuner(tmp_path).path() != before
