"""Inductor times its choices too where the project's kernels don't clearly beat its defaults."""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path

from pipeline.compiler.autotune import Tuner
from pipeline.stages.api import Runner
from pipeline.stages.common import inductor_search, net_candidate, rewritten_net
from pipeline.stages.common.earlier_build import fastest_or_known, without_fp8
from pipeline.stages.common.inductor import triton_as_inductor_has_it
from pipeline.stages.common.inductor_search import INDUCTOR, MODES, SEARCHED, Search, worth_it
from pipeline.stages.common.net_candidate import net_digest
from pipeline.stages.common.not_rewritten import by_inductor_alone
from pipeline.stages.common.rewritten_net import Rewritten
from pipeline.stages.common.time_limit import TooLongError
from tests.stages.test_earlier_build import exported_once
from tests.stages.test_fused import MOVED, no_gpu, small_unet, times, workload

__all__ = ["exported_once", "no_gpu"]  # fixtures
OURS = "own kernels"


@pytest.mark.parametrize(
    ("asked", "milliseconds", "searches"),
    [
        ("auto", {INDUCTOR: 1.0, OURS: 0.89}, False),
        ("auto", {INDUCTOR: 1.0, OURS: 0.91}, True),
        ("auto", {INDUCTOR: 1.0, OURS: 1.2}, True),
        ("auto", {INDUCTOR: 0.0}, True),
        ("auto", {OURS: 0.0}, False),
        ("never", {INDUCTOR: 1.0, OURS: 1.2}, False),
        ("always", {INDUCTOR: 1.0, OURS: 0.5}, True),
    ],
)
def test_it_is_searched_where_that_may_be_the_fastest(
    asked: Search, milliseconds: dict[str, float], searches: bool
) -> None:
    assert worth_it(asked, milliseconds) is searches


def built(folder: Path, said: list[str]) -> Runner:
    """The stage of a net that the kernels take."""
    rewritten = Rewritten(workload(small_unet(), folder, said.append), Tuner(folder), None)
    return fastest_or_known(rewritten, without_fp8(rewritten))


@pytest.mark.parametrize("named", [None, "mine"])
def test_triton_s_folder_is_named_before_anything_is_compiled(
    named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Inductor would name it later, but for a user who has."""
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
    monkeypatch.setattr(rewritten_net, "is_cuda", lambda _: True)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    times(monkeypatch, 1.0, 0.5)
    said: list[str] = []
    assert built(tmp_path, said).execution is not None
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton" / "0")  # where Inductor's kernels are, too
    begun = next(at for at, line in enumerate(said) if line.startswith("compiling ") and line.endswith(" meanwhile"))
    count = int(said[begun].split()[1])
    assert count > 0
    assert said[begun + 1] == "all of it by Inductor"
    assert not [line for line in said if "could not be compiled ahead" in line or "at its turn" in line]


def test_the_faster_mode_runs_and_a_second_build_makes_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times(monkeypatch, 1.0, 0.95, 0.92)
    said: list[str] = []
    first = built(tmp_path, said)
    assert first.details["candidates_ms"] == {INDUCTOR: 1.0, OURS: 0.95, SEARCHED: 0.92}
    assert first.description == "fp16, all by Inductor that times its choices, one CUDA graph"
    assert first.execution is not None
    assert first.execution.own_kernels == 0
    times(monkeypatch)
    said.clear()
    assert built(tmp_path, said).details == {**first.details, "known": True}
    assert [line for line in said if line.startswith("all of it by")] == [f"all of it by {SEARCHED}"]


def test_a_search_that_gains_nothing_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, 1.0, 0.93, 0.95)
    stage = built(tmp_path, [])
    assert stage.details["candidates_ms"][SEARCHED] == 0.95
    assert stage.execution is not None
    assert stage.execution.own_kernels == 6


def only_by_default(module: Any, *_: torch.Tensor, mode: str) -> tuple[Any, int]:
    """In the place of a compiler that fails when it searches."""
    if mode != MODES[INDUCTOR]:
        raise RuntimeError("no choice fits")
    return module, MOVED


def test_a_search_that_fails_is_said_and_the_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net_candidate, "compile_counting_bytes", only_by_default)
    times(monkeypatch, 1.0, 0.93)
    stage = built(tmp_path, [])
    assert stage.details["refused"] == {SEARCHED: "RuntimeError: no choice fits"}
    assert stage.execution is not None
    assert stage.execution.own_kernels == 6


def test_a_search_that_nobody_asked_for_is_given_up_in_time_and_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage has its other candidates then, in place of a build that was ended at its limit."""

    def searching(module: Any, *_: torch.Tensor, mode: str) -> tuple[Any, int]:
        while mode != MODES[INDUCTOR]:
            time.sleep(0.01)
        return module, MOVED

    monkeypatch.setattr(net_candidate, "compile_counting_bytes", searching)
    monkeypatch.setattr(inductor_search, "MOST_SECONDS", 0.05)
    times(monkeypatch, 1.0, 0.93)
    stage = built(tmp_path, [])
    why = "TooLongError: given up after 0.05 s"
    assert stage.details["refused"] == {SEARCHED: why}
    assert f"{SEARCHED} was refused: {why}" in stage.description
    for _ in range(2):  # another stage asks for the same net, and knows
        said: list[str] = []
        alone = by_inductor_alone(workload(small_unet(), tmp_path, said.append), "two inputs", Tuner(tmp_path), "auto")
        assert alone.details["refused"] == {SEARCHED: why}
        assert why in alone.description
    assert said == [f"all of it by {INDUCTOR}"]


def test_a_net_that_no_kernel_takes_runs_in_the_faster_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next build makes that mode alone."""
    times(monkeypatch, 2.0, 1.0)
    work = workload(small_unet(), tmp_path)
    stage = by_inductor_alone(work, "several inputs", Tuner(tmp_path), "auto")
    assert stage.description == "fp16, all by Inductor that times its choices, one CUDA graph: several inputs"
    assert stage.details == {"not_rewritten": "several inputs", "candidates_ms": {INDUCTOR: 2.0, SEARCHED: 1.0}}
    times(monkeypatch)
    again = by_inductor_alone(work, "several inputs", Tuner(tmp_path), "auto")
    assert again.details == {**stage.details, "known": True}
    assert again.description == stage.description


def test_such_a_net_keeps_the_default_where_a_search_fails_or_is_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(net_candidate, "compile_counting_bytes", only_by_default)
    times(monkeypatch)
    work = workload(small_unet(), tmp_path)
    stage = by_inductor_alone(work, "several inputs", Tuner(tmp_path), "auto")
    assert stage.details["refused"] == {SEARCHED: "RuntimeError: no choice fits"}
    said: list[str] = []
    never = workload(small_unet(), tmp_path, said.append)
    stage = by_inductor_alone(never, "several inputs", Tuner(tmp_path), "never")
    assert stage.details["candidates_ms"] == {INDUCTOR: 0.0}
    assert said == [f"all of it by {INDUCTOR}"]


def failing_search(error: Exception) -> Any:
    """In the place of a compiler that meets this where it searches, and compiles by its defaults."""

    def compiled(module: Any, *_: torch.Tensor, mode: str) -> tuple[Any, int]:
        if mode != MODES[INDUCTOR]:
            raise error
        return module, MOVED

    return compiled


def test_a_search_that_somebody_else_s_memory_ended_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = workload(small_unet(), tmp_path)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(net_candidate, "compile_counting_bytes", failing_search(RuntimeError("out of memory")))
        first = by_inductor_alone(work, "three axes", Tuner(tmp_path), "auto")
    assert first.details["refused"] == {SEARCHED: "RuntimeError: out of memory"}
    times(monkeypatch, 2.0, 1.0)
    again = by_inductor_alone(work, "three axes", Tuner(tmp_path), "auto")
    assert again.details == {"not_rewritten": "three axes", "candidates_ms": {INDUCTOR: 2.0, SEARCHED: 1.0}}


def test_where_the_search_that_won_takes_too_long_the_defaults_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one graph as before, and the next build knows."""
    times(monkeypatch, 2.0, 1.0)
    work = workload(small_unet(), tmp_path)
    by_inductor_alone(work, "three axes", Tuner(tmp_path), "auto")
    slow = failing_search(TooLongError("given up after 360 s"))
    monkeypatch.setattr(net_candidate, "compile_counting_bytes", slow)
    for _ in range(2):
        stage = by_inductor_alone(work, "three axes", Tuner(tmp_path), "auto")
        assert stage.details["refused"] == {SEARCHED: "TooLongError: given up after 360 s"}
        assert stage.description.startswith("fp16, all by Inductor, one CUDA graph; ")


def test_a_second_build_of_a_rewritten_net_says_what_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = failing_search(TooLongError("given up after 360 s"))
    monkeypatch.setattr(net_candidate, "compile_counting_bytes", slow)
    times(monkeypatch, 1.0, 0.93)
    first = built(tmp_path, [])
    times(monkeypatch)
    said: list[str] = []
    again = built(tmp_path, said)
    assert again.details["refused"] == first.details["refused"] == {SEARCHED: "TooLongError: given up after 360 s"}
    assert f"all of it by {SEARCHED}" not in said


def test_another_net_is_not_known() -> None:
    """Nor the same one with a tensor of another shape, or with another text."""
    wide, narrow = (torch.nn.Conv2d(3, width, 1) for width in (8, 4))
    inputs = [torch.zeros(1, 3, side, 8) for side in (8, 4)]
    digests = {
        net_digest(str(net), net, [batch], [search])
        for net in (wide, narrow)
        for batch in inputs
        for search in ("auto", "never")
    }
    assert len(digests) == 8
