"""Whoever forks and leaves before all processes are listed is ended all the same, and leaves no corpses."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.orchestrate import offspring
from pipeline.orchestrate.offspring import Family

pytestmark = [
    pytest.mark.fresh_process,
    pytest.mark.skipif(sys.platform != "linux", reason="a run adopts what its workers leave under Linux alone"),
]

# Each generation works for two thousandths of a second, in a session of its own; all end by themselves in ten seconds.
HOPS = """
import os, time
ends = time.time() + 10
while time.time() < ends:
    if os.fork():
        os._exit(0)
    os.setsid()
    began = time.perf_counter()
    while time.perf_counter() - began < 0.002: pass
"""
OTHERS: set[int] = set()
STARTS = f"import subprocess, sys; subprocess.Popen([sys.executable, '-SEc', {HOPS!r}]); sys.stdin.read()"


@pytest.fixture
def hopping() -> Iterator[Family]:
    """A worker whose child flees."""
    offspring.adopt()
    others = offspring.adopted(offspring.parents())  # what other tests left to this process
    command = [sys.executable, "-SEc", STARTS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as leader:
        family = Family(leader.pid)
        OTHERS.update(others)
        assert begun(family)
        yield family
        known = family.started()
        leader.kill()
        family.end(known)
        family.forget()


def left(family: Family) -> set[int]:
    """What the worker's child came to, and is this process's by now."""
    return offspring.adopted(offspring.parents()) - {family.leader} - OTHERS


def begun(family: Family) -> bool:
    ends = time.monotonic() + 5
    while not left(family) and time.monotonic() < ends:
        time.sleep(0.01)
    return bool(left(family))


def at_rest(process: int) -> str:
    """Its state once a signal that is under way has reached it, as it does on another processor within microseconds."""
    ends = time.monotonic() + 5
    while (found := offspring.state(process)) not in ("T", *offspring.ENDED) and time.monotonic() < ends:
        time.sleep(0.001)
    return found


def test_whoever_flees_from_a_stop_is_ended(hopping: Family) -> None:
    """The worker itself is stopped, and goes on afterwards."""
    assert hopping.suspend()
    assert at_rest(hopping.leader) == "T"
    assert {at_rest(process) for process in left(hopping)} <= {"T", *offspring.ENDED}
    hopping.resume()
    assert offspring.state(hopping.leader) != "T"


def test_whoever_flees_from_its_end_is_ended(hopping: Family) -> None:
    hopping.end(hopping.started())
    assert not left(hopping)


def test_what_always_leaves_another_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while it is given up."""
    monkeypatch.setattr(offspring, "PURSUIT_SECONDS", 0.01)
    monkeypatch.setattr(offspring, "own_children", lambda: {2**22 + 1})  # beyond the last process
    assert not offspring.pursue(lambda _: True)
    assert offspring.pursue(lambda _: False)


def test_children_are_known_where_the_kernel_keeps_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-SEc", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in offspring.own_children()
        monkeypatch.setattr(offspring, "names_in", lambda _: [])
        monkeypatch.setattr(offspring, "parents", lambda _: {child.pid: os.getpid(), 1: 0})
        assert offspring.own_children() == {child.pid}


def test_a_process_that_ends_while_all_are_listed_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is still named, and gone."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a name) S 1 7 7")
    monkeypatch.setattr("os.listdir", lambda _: ["7", "8", "self"])
    assert offspring.parents(tmp_path) == {7: 1}
    monkeypatch.undo()
    assert offspring.parents(tmp_path / "nowhere") == {}
