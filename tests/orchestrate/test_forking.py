"""Workers that are copies of a server: each is a process of its own, and where there is no server, one is started."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import __main__ as program
from pipeline.config.plan import Plan
from pipeline.orchestrate import context, forking, offspring, run, spawning
from pipeline.orchestrate.forking import ForkedProcess, ForkServer, fork_server
from tests.fork_server import suspended
from tests.orchestrate.fake_worker import QUICK, FakeWorker, Watcher, blank, config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers fork under Linux alone")

ECHO = "tests.orchestrate.forked_echo"
SLEEPING_THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"


@contextmanager
def started(*modules: str) -> Iterator[ForkServer]:
    """A server whose workers are copies of an interpreter that has these modules."""
    offspring.adopt()
    with suspended():
        server = ForkServer(modules)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def two_workers(server: ForkServer) -> Iterator[list[tuple[ForkedProcess, int]]]:
    """Two of its workers and their messages; closed afterwards."""
    found = [worker for worker in (server.worker(), server.worker()) if worker]
    try:
        yield found
    finally:
        for process, messages in found:
            with closing(process.stdout), closing(process.stdin):
                os.close(messages)


def told(process: ForkedProcess, messages: int, line: str) -> list[str]:
    """What a worker answers to a line."""
    process.stdin.write(f"{line}\n".encode())
    process.stdin.flush()
    return os.read(messages, 1000).decode().split()


def test_a_forked_worker_is_a_process_of_its_own() -> None:
    """It leads a session, is this process's child, and has pipes and an end of its own; another one lives on."""
    with started(ECHO) as server, two_workers(server) as [(first, of_first), (second, of_second)]:
        here = str(os.getpid())
        assert told(first, of_first, "one") == [str(first.pid), str(first.pid), here, "one"]
        assert told(second, of_second, "two") == [str(second.pid), str(second.pid), here, "two"]
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(timeout=0.0)
        os.killpg(first.pid, signal.SIGKILL)
        assert first.wait(timeout=5.0) == -signal.SIGKILL
        assert os.read(of_first, 10) == b""
        assert second.poll() is None
        server.stop()
        second.stdin.close()
        assert second.stdout.read() == b"two\n"
        assert second.wait(timeout=5.0) == 7


def test_a_server_that_a_stage_has_stopped_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the run would wait for it."""
    monkeypatch.setattr(forking, "PATIENCE_SECONDS", 20.0)
    with started(ECHO) as server:
        os.kill(server.process_id, signal.SIGSTOP)
        with two_workers(server) as found:
            assert len(found) == 2


def test_a_worker_whose_end_another_has_noted_is_gone(tmp_path: Path) -> None:
    """Whoever ends all that is left takes note of a worker's end, too."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with (tmp_path / "in").open("wb") as stdin, (tmp_path / "in").open("rb") as stdout:
        assert ForkedProcess(child, stdin, stdout).poll() == -signal.SIGKILL


@pytest.mark.parametrize("program", ["import no_such_module", SLEEPING_THREAD])
def test_a_server_that_cannot_fork_starts_no_worker(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its modules can't be imported, or leave a thread that a copy would lack; a worker is then started as usual."""
    (tmp_path / "unforkable.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path.cwd()}")
    with started("unforkable") as server:
        assert server.worker() is None
        assert server.failed == "the fork server could start no process"
        monkeypatch.setattr("sys.executable", "/bin/true")
        with suspended():
            process, messages = spawning.started(server)
        assert not isinstance(process, ForkedProcess)
        process.communicate()
        os.close(messages)


def test_what_is_no_child_of_the_run_is_ended() -> None:
    """Where nobody adopts the orphans of the run, its end could not be told."""
    with started(ECHO) as server:
        ctypes.CDLL(None).prctl(offspring.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert server.worker() is None
        offspring.adopt()
        assert "no child of the run" in server.failed


def test_a_run_goes_on_without_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so once, and starts interpreters."""

    class Failed:
        failed, stopped = "the fork server ended", 0

        def stop(self) -> None:
            self.stopped += 1

    server, watcher = Failed(), Watcher()
    monkeypatch.setattr(run, "fork_server", lambda _: server)
    monkeypatch.setattr(context, "WorkerProcess", FakeWorker)
    record = run.run_ladder(config("fine"), tmp_path, blank(), watcher)
    assert [stage.status for stage in record.stages] == ["ok"]
    assert watcher.said == ["the fork server ended; from here on each worker is an interpreter of its own"]
    assert server.stopped == 1


def test_workers_fork_on_a_cpu_where_the_plan_says_so() -> None:
    """On a GPU never, and by default not: published figures come from interpreters of their own."""
    forking = replace(QUICK, fork_workers=True)
    assert not Plan().fork_workers
    assert fork_server(config(plan=QUICK)) is None
    assert fork_server(config(plan=forking, device="cuda")) is None
    with suspended():
        server = fork_server(config(plan=forking))
    assert server is not None
    server.stop()


class FakeServer:
    """One that imports nothing."""

    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is started ahead, and those that are, are fake ones, on two idle processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.1, 0.1))
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
@pytest.mark.parametrize(
    "words",
    [["preset=smoke"], ["-m", "measure=thorough"], ["device=cuda"], ["--help"], ["+hydra/launcher=joblib"], ["--cfg"]],
)
def test_none_is_started_ahead_of_a_run_that_may_want_none(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where a GPU is, or no processor is free; several values of what doesn't matter are no reason."""
    forking.start_ahead(words)
    assert forking._Ahead.server is None
    (tmp_path / "nvidiactl").touch()
    forking.start_ahead([], tmp_path / "nvidiactl")
    assert forking._Ahead.server is None
    monkeypatch.setattr(os, "getloadavg", lambda: (1.0, 0.1, 0.1))
    forking.start_ahead([])
    assert forking._Ahead.server is None
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 0.1, 0.1))
    forking.start_ahead(["-m", "seed=1,2"])
    assert forking._Ahead.server


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
def test_a_server_that_no_run_takes_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a run that wants none, and at the program's end."""
    for end in (lambda: fork_server(config("one")), program.main):
        forking.start_ahead([])
        ahead = forking._Ahead.server
        assert isinstance(ahead, FakeServer)
        monkeypatch.setattr("pipeline.cli.app.guard", lambda _: 2)
        with suppress(SystemExit):
            end()
        assert ahead.stopped
        assert forking._Ahead.server is None
