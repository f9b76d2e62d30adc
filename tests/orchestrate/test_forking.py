"""Workers that are copies of a server: each is a process of its own, and where there is no server, one is started."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.orchestrate import context, forking, processes, run, spawning
from pipeline.orchestrate.forking import ForkedProcess, ForkServer, fork_server
from pipeline.records.plan import Plan
from tests.fork_server import suspended
from tests.orchestrate.fake_worker import QUICK, FakeWorker, Watcher, blank, config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers fork under Linux alone")

OPEN_GPU = "import __main__\n__main__.GPU = '/dev/zero'\nopened = open('/dev/zero')"
COLLECTING = "import gc, os, sys\ndef main():\n    os.write(int(sys.argv[1]), str(gc.isenabled()).encode())"
SLOW = "import os, pathlib, time\npathlib.Path('pid').write_text(f'{os.getpid()} ')\ntime.sleep(60)"
PARENT = """
import os, signal
from pipeline.orchestrate.forking import ForkServer
server = ForkServer(("slow",))
print(server.process_id, flush=True)
"""
ECHO = "tests.orchestrate.forked_echo"
SLEEPING_THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"


@contextmanager
def started(*modules: str) -> Iterator[ForkServer]:
    """A server whose workers are copies of an interpreter that has these modules."""
    processes.adopt()
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


@pytest.mark.parametrize("program", ["import no_such_module", SLEEPING_THREAD, OPEN_GPU])
def test_a_server_that_cannot_fork_starts_no_worker(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its modules can't be imported, leave a thread that a copy would lack, or open a GPU, which no copy could use.

    A worker is then started as usual.
    """
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


def test_a_copy_collects_garbage_as_any_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server itself doesn't, while it imports."""
    (tmp_path / "collecting.py").write_text(COLLECTING)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path.cwd()}")
    with started("collecting") as server, two_workers(server) as found:
        assert [os.read(messages, 10) for _, messages in found] == [b"True", b"True"]


@pytest.mark.fresh_process
def test_a_server_dies_with_its_parent_while_it_imports(tmp_path: Path) -> None:
    """A parent that is killed leaves none behind, however long its imports take."""
    with parent_of_server(tmp_path, "input()") as parent:
        server = pid_in(tmp_path / "pid")
        parent.kill()
    wait_for_end(server)


@pytest.mark.fresh_process
def test_a_server_whose_parent_died_before_it_could_ask_imports_nothing(tmp_path: Path) -> None:
    """Python's own start takes it longer than a parent may live; Linux signals no death that lies behind."""
    with parent_of_server(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)") as parent:
        assert parent.stdout
        server = int(parent.stdout.readline())
    wait_for_end(server)
    assert not (tmp_path / "pid").exists()


def parent_of_server(folder: Path, then: str) -> subprocess.Popen[bytes]:
    """A process that starts a server with long imports, prints the server's pid, and goes on as `then` says."""
    (folder / "slow.py").write_text(SLOW)
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{Path.cwd()}"}
    command = [sys.executable, "-c", PARENT + then]
    return subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def wait_for_end(process: int) -> None:
    """Until the process of this id is gone, for a third of the time that its imports would take at most."""
    ends = time.monotonic() + 20.0
    while processes.state(process) not in ("", "Z"):
        assert time.monotonic() < ends
        time.sleep(0.01)


def pid_in(file: Path) -> int:
    """The number that a process writes there, waited for."""
    ends = time.monotonic() + 60.0
    while not (file.exists() and file.read_text().endswith(" ")):
        assert time.monotonic() < ends
        time.sleep(0.01)
    return int(file.read_text())


def test_what_is_no_child_of_the_run_is_ended() -> None:
    """Where nobody adopts the orphans of the run, its end could not be told."""
    with started(ECHO) as server:
        ctypes.CDLL(None).prctl(processes.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert server.worker() is None
        processes.adopt()
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
