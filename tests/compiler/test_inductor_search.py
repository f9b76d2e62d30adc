"""Inductor times its choices too where own kernels don't clearly beat its defaults, for a limited time."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path

from pipeline.compiler import candidate, driver
from pipeline.compiler.batch import batched
from pipeline.compiler.candidate import INDUCTOR, MODES, SEARCHED, Search, TooLongError, within
from pipeline.compiler.driver import Built, by_inductor_alone, fastest_or_known, without_fp8
from pipeline.compiler.inductor import triton_as_inductor_has_it
from tests.compiler.made_up_gpu import MOVED, exported_once, no_gpu, request, rewritten, small_unet, times

__all__ = ["exported_once", "no_gpu"]  # fixtures
pytestmark = pytest.mark.usefixtures("exported_once")
OURS = "own kernels"


def built(folder: Path, said: list[str]) -> Built:
    made = rewritten(small_unet(), folder, progress=said.append)
    return fastest_or_known(made, without_fp8(made))


def alone(folder: Path, why: str, search: Search = "auto", said: list[str] | None = None) -> Built:
    return by_inductor_alone(request(small_unet(), folder, search, progress=([] if said is None else said).append), why)


@pytest.mark.parametrize("named", [None, "mine"])
def test_triton_s_folder_is_named_before_it(named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", named or "")
    if named is None:
        monkeypatch.delenv("TRITON_CACHE_DIR")
    triton_as_inductor_has_it(torch.device("cuda:1"))
    assert os.environ["TRITON_CACHE_DIR"] == (named or str(tmp_path / "triton" / "1"))


@pytest.mark.parametrize("named", [None, "mine"])
def test_ptxas_is_named_before_anything_is_compiled(named: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same: programs are named by its version, and a deployed net's would be another's."""
    monkeypatch.setenv("TRITON_CACHE_DIR", "mine")
    inductor: Callable[[], None] = _set_triton_ptxas_path.__wrapped__
    found = []
    for names in (inductor, partial(triton_as_inductor_has_it, torch.device("cuda:0"))):
        monkeypatch.setenv("TRITON_PTXAS_PATH", named or "")
        if named is None:
            monkeypatch.delenv("TRITON_PTXAS_PATH")
        names()
        found.append(os.environ.get("TRITON_PTXAS_PATH"))
    assert found[1] == found[0]
    assert named is None or found == [named, named]


def test_kernels_are_compiled_beside_the_first_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, for which this takes the CPU, whose interpreter has nothing to compile."""
    monkeypatch.setattr(driver, "is_cuda", lambda _: True)
    monkeypatch.setattr(driver, "A_WHILE", 0.0)  # and how long it takes is told
    times(monkeypatch, 1.0, 0.5)
    said: list[str] = []
    built(tmp_path, said)
    begun = next(at for at, line in enumerate(said) if line.startswith("compiling ") and line.endswith(" meanwhile"))
    count = int(said[begun].split()[1])
    assert count > 0
    assert re.search(r", about \d+ s, meanwhile$", said[begun])
    assert re.search(r"layers by own kernels, the rest by Inductor, about \d+ s$", said[begun + 1])
    assert re.search(r"^all of it by Inductor, about \d+ s$", said[-1])
    assert not [line for line in said if "could not be compiled ahead" in line or "at its turn" in line]


def test_the_faster_mode_runs_and_a_second_build_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 1.0, 0.95, 0.92)
    said: list[str] = []
    first = built(tmp_path, said)
    assert first.details["candidates_ms"] == {INDUCTOR: 1.0, OURS: 0.95, SEARCHED: 0.92}
    assert first.description == "fp16, all by Inductor that times its choices, one CUDA graph"
    assert first.properties.own_kernels == 0
    times(monkeypatch)
    said.clear()
    assert built(tmp_path, said).details == {**first.details, "known": True}
    assert [line for line in said if line.startswith("all of it by")] == [f"all of it by {SEARCHED}"]


def failing_search(error: Exception) -> Any:
    """In the place of a compiler that meets this where it searches, and compiles by its defaults."""

    def compiled(module: Any, *_: torch.Tensor, mode: str) -> tuple[Any, int]:
        if mode != MODES[INDUCTOR]:
            raise error
        return module, MOVED

    return compiled


def test_a_search_that_fails_is_said_and_the_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidate, "compile_counting_bytes", failing_search(RuntimeError("no choice fits")))
    times(monkeypatch, 1.0, 0.93)
    stage = built(tmp_path, [])
    assert stage.details["refused"] == {SEARCHED: "RuntimeError: no choice fits"}
    assert stage.properties.own_kernels == 6
    said: list[str] = []
    assert alone(tmp_path, "several inputs", "never", said).details["candidates_ms"] == {INDUCTOR: 0.0}
    assert said == [f"all of it by {INDUCTOR}"]


def test_a_search_not_asked_for_is_given_up_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage has its other candidates then, in place of a build that was ended at its limit."""

    def searching(module: Any, *_: torch.Tensor, mode: str) -> tuple[Any, int]:
        while mode != MODES[INDUCTOR]:
            time.sleep(0.01)
        return module, MOVED

    monkeypatch.setattr(candidate, "compile_counting_bytes", searching)
    monkeypatch.setattr(driver, "MOST_SECONDS", 0.05)
    times(monkeypatch, 1.0, 0.93)
    stage = built(tmp_path, [])
    why = "TooLongError: given up after 0.05 s"
    assert stage.details["refused"] == {SEARCHED: why}
    assert f"{SEARCHED} was refused: {why}" in stage.description
    for _ in range(2):  # another stage asks for the same net, and knows
        said: list[str] = []
        second = alone(tmp_path, "two inputs", said=said)
        assert second.details["refused"] == {SEARCHED: why}
        assert why in second.description
    assert said == [f"all of it by {INDUCTOR}"]


def test_a_search_that_another_s_memory_ended_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(candidate, "compile_counting_bytes", failing_search(RuntimeError("out of memory")))
        first = alone(tmp_path, "three axes")
    assert first.details["refused"] == {SEARCHED: "RuntimeError: out of memory"}
    times(monkeypatch, 2.0, 1.0)
    again = alone(tmp_path, "three axes")
    assert again.details == {"not_rewritten": "three axes", "candidates_ms": {INDUCTOR: 2.0, SEARCHED: 1.0}}


def test_where_the_winning_search_takes_long_the_defaults_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 2.0, 1.0)
    alone(tmp_path, "three axes")
    slow = failing_search(TooLongError("given up after 360 s"))
    monkeypatch.setattr(candidate, "compile_counting_bytes", slow)
    for _ in range(2):
        stage = alone(tmp_path, "three axes")
        assert stage.details["refused"] == {SEARCHED: "TooLongError: given up after 360 s"}
        assert stage.description.startswith("fp16, all by Inductor, one CUDA graph; ")


def test_another_net_is_not_known(tmp_path: Path) -> None:
    def digest(net: torch.nn.Module, batch: torch.Tensor, text: str) -> str:
        whole = driver.Whole(request(net, tmp_path, inputs=batched(batch)))
        whole.plain = net
        return driver.digest_of(whole, [text])

    wide, narrow = (torch.nn.Conv2d(3, width, 1) for width in (8, 4))
    inputs = [torch.zeros(1, 3, side, 8) for side in (8, 4)]
    digests = {digest(net, batch, search) for net in (wide, narrow) for batch in inputs for search in ("auto", "never")}
    assert len(digests) == 8


def forever() -> None:
    while True:
        time.sleep(0.01)


def test_an_alarm_that_something_kept_to_itself_rings_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.compiler.candidate.AGAIN", 0.05)
    swallowed = []

    def careless() -> None:
        try:
            forever()
        except BaseException as error:  # noqa: BLE001 - as a callback of C does
            swallowed.append(error)
        forever()

    with pytest.raises(TooLongError):
        within(0.05, careless)
    assert len(swallowed) == 1


@pytest.fixture
def alarms() -> Iterator[list[float]]:
    rang: list[float] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(time.monotonic()))
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    yield rang
    signal.signal(signal.SIGALRM, before)
    signal.setitimer(signal.ITIMER_REAL, left, interval)


@pytest.mark.parametrize("seconds", [None, 60.0])
def test_what_ends_in_time_is_left_alone_and_nothing_rings_later(seconds: float | None, alarms: list[float]) -> None:
    assert within(seconds, lambda: "made") == "made"
    assert alarms == []
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
