"""The server that is started before the request is read: who starts it, who takes it, and who ends it."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import __main__ as program
from pipeline.orchestrate import context, forking, run
from pipeline.orchestrate.forking import fork_server, processor_is_free
from pipeline.records.plan import Phase
from pipeline.records.request import Job
from tests.orchestrate.fake_worker import QUICK, FakeWorker, Watcher, blank, config


class FakeServer:
    """One that imports nothing."""

    def __init__(self) -> None:
        self.failed, self.stopped = "", False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is started ahead, and those that are, are fake ones, beside an idle processor."""
    monkeypatch.setattr(forking, "processor_is_free", lambda: True)
    monkeypatch.setattr(forking, "ForkServer", FakeServer)
    monkeypatch.setattr(forking._Ahead, "server", None)


FORKED = config("one", plan=replace(QUICK, fork_workers=True))


@pytest.mark.usefixtures("no_server")
def test_the_server_that_was_started_ahead_is_the_run_s() -> None:
    """Once; a second run starts its own."""
    forking.start_ahead(["stage=compile", "data.size=96"])
    ahead = forking._Ahead.server
    forking.start_ahead([])
    assert forking._Ahead.server is ahead
    assert fork_server(FORKED) is ahead
    assert fork_server(FORKED) is not ahead
    assert forking._Ahead.server is None


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize("words", [["--help"], ["stage=eager", "--cfg"], ["-m", "+hydra/launcher=joblib"]])
def test_none_is_started_ahead_of_what_may_run_nothing_itself(words: list[str]) -> None:
    """Of a sweep within this process, and of any device, preset and measure, the first worker is the server's."""
    forking.start_ahead(words)
    assert forking._Ahead.server is None
    forking.start_ahead(["-m", "preset=smoke", "measure=thorough", "device=cpu", "seed=1,2"])
    assert forking._Ahead.server


@pytest.mark.usefixtures("no_server")
def test_none_is_started_ahead_where_no_processor_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By who computes now, and not by what a minute's average remembers; where nobody says, none.

    A sandbox that shows zeros doesn't say: this process computes as it looks.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    load = tmp_path / "loadavg"
    shown = {"9.1 3.0 1.0 1/90 77": True, "0.1 0.1 0.1 2/90 77": False, "0.0 0.0 0.0 0/0 0": False, "": False}
    for text, free in shown.items():
        load.write_text(text)
        assert processor_is_free(load) is free
    assert not processor_is_free(tmp_path / "none")
    monkeypatch.setattr(forking, "processor_is_free", lambda: False)
    forking.start_ahead([])
    assert forking._Ahead.server is None


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize("what", ["the environment", "the folder", "nothing"])
def test_a_server_of_other_surroundings_is_ended(what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its workers would have what was set before: Hydra may set variables for a job, and change its folder."""
    forking.start_ahead([])
    ahead = forking._Ahead.server
    assert isinstance(ahead, FakeServer)
    if what == "the environment":
        monkeypatch.setenv("OMP_NUM_THREADS", "7")
    elif what == "the folder":
        monkeypatch.chdir(tmp_path)
    taken = fork_server(FORKED)
    assert taken
    assert (taken is ahead, ahead.stopped) == ((True, False) if what == "nothing" else (False, True))


@pytest.mark.usefixtures("no_server")
@pytest.mark.parametrize("own", [False, True])
def test_where_workers_are_interpreters_the_first_alone_is_the_server_s(
    own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference's, whose imports had begun; the server is ended before any other worker is started."""
    came_from: list[tuple[str, object]] = []
    forking.start_ahead([])
    ahead = forking._Ahead.server
    assert isinstance(ahead, FakeServer)

    class Noting(FakeWorker):
        def __init__(self, job: Job, log: Path, limits: Mapping[Phase, float], server: object = None) -> None:
            came_from.append((job.role, server))
            assert server or forking._Ahead.server is None
            assert server or ahead.stopped
            super().__init__(job, log, limits, server)

    monkeypatch.setattr(context, "WorkerProcess", Noting)
    if own:  # another run's, and so not this one's
        monkeypatch.setenv("OMP_NUM_THREADS", "7")
    run.run_ladder(config("fine"), tmp_path, blank(), Watcher())
    assert came_from[0] == ("reference", None if own else ahead)
    assert {server for _, server in came_from[1:]} == {None}


@pytest.mark.usefixtures("no_server")
def test_a_server_started_ahead_that_can_start_no_worker_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, where workers are interpreters anyway: the reference's has become one, too."""
    monkeypatch.setattr(context, "WorkerProcess", FakeWorker)
    forking.start_ahead([])
    ahead, watcher = forking._Ahead.server, Watcher()
    assert isinstance(ahead, FakeServer)
    ahead.failed = "the fork server ended"
    record = run.run_ladder(config("fine"), tmp_path, blank(), watcher)
    assert [stage.status for stage in record.stages] == ["ok"]
    assert watcher.said == ["the fork server ended; from here on each worker is an interpreter of its own"]


@pytest.mark.usefixtures("no_server")
def test_the_server_is_started_before_the_program_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    """And ended where the program then can't: whoever calls `main`, the console script above all."""
    began: list[FakeServer] = []

    class Noted(FakeServer):
        def __init__(self) -> None:
            super().__init__()
            began.append(self)

    monkeypatch.setattr(forking, "ForkServer", Noted)
    monkeypatch.setattr("sys.argv", ["unet-ladder"])
    monkeypatch.setitem(sys.modules, "pipeline.cli", None)
    with pytest.raises(ImportError, match="halted"):
        program.main()
    assert [server.stopped for server in began] == [True]


@pytest.mark.usefixtures("no_server")
def test_a_server_that_no_run_takes_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By a run whose reference another job of its sweep has computed, and at the program's end."""
    monkeypatch.setattr(context, "WorkerProcess", FakeWorker)
    monkeypatch.setattr(run, "describe_run", lambda _: None)
    monkeypatch.setattr("pipeline.cli.app.main", lambda: 2)
    for end in (lambda: run.run_ladder(config("one"), tmp_path, blank(), Watcher()), program.main):
        forking.start_ahead([])
        ahead = forking._Ahead.server
        assert isinstance(ahead, FakeServer)
        with suppress(SystemExit):
            end()
        assert ahead.stopped
        assert forking._Ahead.server is None
