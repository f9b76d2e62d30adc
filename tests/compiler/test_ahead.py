"""What choosing tiles launches is compiled beforehand, all of it, and nothing else is done for it."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.interpreter import InterpretedFunction

from pipeline.compiler import ahead
from pipeline.compiler.ahead import compiled_beside, compilers_started, programs_of
from pipeline.compiler.graph.fp8_values import fp8_groups
from pipeline.compiler.graph.lowering import lower
from pipeline.compiler.ops import BY_NAME
from pipeline.compiler.tuning import autotune, own_norms
from pipeline.compiler.tuning import choose as choosing
from pipeline.compiler.tuning.autotune import MOST_AT_ONCE, Tuner
from pipeline.compiler.tuning.choose import MeasuredLayer, choose
from pipeline.compiler.tuning.compile_processes import FEWEST_PROCESSORS, CompilingProcesses, target_alone
from pipeline.compiler.tuning.own_norms import put_own_norms
from pipeline.kernels.common import program
from pipeline.kernels.common.program import Program, Programs, on_grid, only_noted
from tests.compiler.rewriting import Exported, exported, rewritten_from
from tests.compiler.test_own_norms import BATCH
from tests.compiler.test_own_norms import exported as normed
from tests.kernels.examples import HALF, Layer, example


@pytest.fixture(scope="module")
def made() -> Exported:
    found = exported("one level, batch 3")
    return replace(found, net=rewritten_from(found.module, found.batch, torch.float16))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Programs:
    found: Programs = {}
    launches = InterpretedFunction.__getitem__

    def both(kernel: InterpretedFunction, grid: tuple[int, ...]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            program._note(found, kernel, grid, *args, **options)
            return launches(kernel, grid)(*args, **options)

        return call

    monkeypatch.setattr(InterpretedFunction, "__getitem__", both)
    return found


@pytest.fixture
def quickest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes a second for a tile: of each kernel's the first is run, and nobody asks what it answers."""
    candidates = MeasuredLayer.candidates
    monkeypatch.setattr(MeasuredLayer, "candidates", lambda measured: iter([next(candidates(measured))]))
    for module in (choosing, own_norms):
        monkeypatch.setattr(module, "is_right", lambda *_: True)


def tuner(folder: Path) -> Tuner:
    return Tuner(folder, lambda _: 1.0)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.usefixtures("quickest")
def test_all_that_is_launched_was_noted(made: Exported, launched: Programs, tmp_path: Path, *, fp8: bool) -> None:
    scales = {value.name: 0.5 for group in fp8_groups(made.net, []) if fp8 for value in group}
    noted = programs_of(made.net, scales, made.batch, tuner(tmp_path))
    assert not launched
    plan = choose(made.net, scales, made.batch, tuner(tmp_path), lambda _: None)
    assert plan.tiles
    assert launched
    assert launched.keys() <= noted.keys()
    assert not programs_of(made.net, scales, made.batch, tuner(tmp_path))


@pytest.mark.usefixtures("quickest")
def test_norms_by_own_kernels_were_noted_too(launched: Programs, tmp_path: Path) -> None:
    net = normed()
    noted = programs_of(net, {}, BATCH, tuner(tmp_path))
    plan = choose(net, {}, BATCH, tuner(tmp_path), lambda _: None)
    lowered, before = lower(net, plan), set(launched)
    assert put_own_norms(lowered, BATCH, tuner(tmp_path))
    assert launched.keys() - before
    assert launched.keys() <= noted.keys()
    assert not programs_of(net, {}, BATCH, tuner(tmp_path))


def test_layers_of_one_kind_share_their_programs_and_hold_no_memory() -> None:
    """Sizes of one kind are one program; what is noted would else keep every layer's maps until it is compiled."""
    with only_noted() as noted:
        for size in (32, 64):  # both multiples of 16
            layer = example(BY_NAME["conv3x3_few"], HALF, Layer(size=(size, size), inner=2, outer=2))
            tile = layer.candidates()[0]
            layer.run(tile)
            held = [weakref.ref(part) for part in (layer.x, *layer.buffers)]
            del layer
    gc.collect()
    assert len(noted) == 1
    assert not any(part() is not None for part in held)


class Fake:
    def __init__(self, compiles: Callable[[], object]) -> None:
        self.compiles = compiles

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        raise AssertionError(f"launched on {grid}")

    def warmup(self, *args: object, grid: tuple[int, ...], **options: object) -> object:
        assert (args, grid, options) == ((), (1,), {})
        return self.compiles()


def programs(*compiles: Callable[[], None]) -> Programs:
    return {number: Program(Fake(each), [], (1,), {}) for number, each in enumerate(compiles)}


def fails() -> None:
    raise ValueError("no such instruction")


def test_what_is_noted_is_compiled_beside() -> None:
    here, began = threading.get_ident(), threading.Event()
    where: list[int] = []
    said: list[str] = []

    def compiles() -> None:
        where.append(threading.get_ident())
        began.set()

    with compiled_beside(programs(fails, compiles, compiles), said.append):
        assert began.wait(60)
    assert len(where) == 2
    assert here not in where
    assert said == ["1 of 3 kernels could not be compiled ahead: ValueError: no such instruction"]


def test_the_threads_share_one_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton builds its driver for who asks first; asked by several at once it builds several into one object."""
    built: list[int] = []

    def build() -> object:
        built.append(threading.get_ident())
        time.sleep(0.2)  # as a compiler's run
        return object()

    config = triton.runtime.driver
    monkeypatch.setattr(config, "_default", None)
    monkeypatch.setattr(config, "_active", None)
    monkeypatch.setattr(sys.modules["triton.runtime.driver"], "_create_driver", build)
    monkeypatch.setattr(autotune, "processors", lambda: 4)
    with compiled_beside(programs(*[lambda: config.active] * 4), pytest.fail):
        assert config.active
    assert len(built) == 1


def test_no_thread_keeps_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6 loads all as one module, so that a thread may get another program's, and pass its arguments."""
    made = Mock()
    monkeypatch.setattr(triton.runtime.driver, "_active", Mock(launcher_cls=made))
    kernels = Fake(lambda: Mock(src="of one", metadata=1)), Fake(lambda: Mock(src="of another", metadata=2))
    autotune.build_side_by_side([*(partial(lambda kernel: on_grid(kernel, 1)(), each) for each in kernels), int, fails])
    assert sorted(call.args for call in made.call_args_list) == [("of another", 2), ("of one", 1)]


def test_an_error_beside_leaves_the_rest_uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, count, pool = threading.Event(), [], autotune.compiling_threads()

    def waits() -> None:
        gate.wait(60)
        count.append(1)

    def shutdown(*, cancel_futures: bool) -> None:
        ThreadPoolExecutor.shutdown(pool, wait=False, cancel_futures=cancel_futures)
        gate.set()
        ThreadPoolExecutor.shutdown(pool)

    monkeypatch.setattr(pool, "shutdown", shutdown)
    monkeypatch.setattr(ahead, "compiling_threads", lambda: pool)
    with pytest.raises(RuntimeError, match="interrupted"), compiled_beside(programs(*[waits] * 100), pytest.fail):
        raise RuntimeError("interrupted")
    assert len(count) <= MOST_AT_ONCE


class Elsewhere(CompilingProcesses):
    """Processes that are through with the second program and the first, and end; or wait until they are stopped."""

    def __init__(self, *, waits: bool = False) -> None:
        self.waits, self.stopped = waits, threading.Event()

    def give(self, programs: Sequence[Program]) -> None:
        """Take them."""

    def finished(self) -> Iterator[int]:
        if self.waits:
            assert self.stopped.wait(60)
            return
        yield from (1, 0)

    def stop(self) -> None:
        self.stopped.set()


def test_what_processes_leave_is_compiled_here_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that they are through with first, which are read from Triton's cache, each once."""
    order: list[int] = []
    monkeypatch.setattr(autotune, "processors", lambda: 1)
    said: list[str] = []
    with compiled_beside(programs(*(partial(order.append, number) for number in range(4))), said.append, Elsewhere()):
        pass
    assert order == [1, 0, 2, 3]
    assert said == ["the processes that compile ended, and threads compiled 2 kernels"]


def test_an_error_beside_stops_the_processes() -> None:
    count: list[int] = []
    given, elsewhere = programs(*[partial(count.append, 1)] * 4), Elsewhere(waits=True)
    with pytest.raises(RuntimeError, match="interrupted"), compiled_beside(given, pytest.fail, elsewhere):
        raise RuntimeError("interrupted")
    assert not count


GPU = torch.device("cuda:0")


def test_a_process_that_can_t_be_started_or_given_its_programs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    said, compiled = list[str](), list[int]()
    for name in ("TRITON_CACHE_DIR", "TRITON_PTXAS_PATH"):  # else they would be left set
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setattr(sys.modules["triton"].runtime.driver, "_active", target_alone(GPUTarget("cuda", 90, 32)))
    monkeypatch.setattr(ahead, "maybe_warm_pool", lambda: None)
    monkeypatch.setattr(ahead, "interpreted", lambda: False)
    monkeypatch.setattr(ahead, "processors", lambda: FEWEST_PROCESSORS)
    with (
        compilers_started(GPU, pytest.fail) as elsewhere,
        compiled_beside(programs(lambda: compiled.append(1)), said.append, elsewhere),
    ):
        assert elsewhere
    assert elsewhere.process.poll() is not None
    monkeypatch.setattr(subprocess, "Popen", Mock(side_effect=OSError("no room")))
    with compilers_started(GPU, said.append) as elsewhere:
        assert elsewhere is None
    monkeypatch.setattr(ahead, "processors", lambda: FEWEST_PROCESSORS - 1)
    with compilers_started(GPU, pytest.fail) as elsewhere:
        assert elsewhere is None
    assert compiled == [1]
    assert [line.partition(": ")[0] for line in said] == ["kernels are compiled in threads, as no process does it"] * 2
