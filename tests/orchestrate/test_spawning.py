"""Workers that are copies of one process: each is a process of its own, and without a server one is started."""

import getpass
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path
from unittest.mock import Mock

import pytest

import pipeline
from conf import ROOT
from pipeline.orchestrate import context, run, spawning
from pipeline.orchestrate.spawning import ForkedProcess, ForkError, forked
from pipeline.records.plan import Plan
from pipeline.worker.preload import holds_gpu
from tests.orchestrate.fake_worker import QUICK, FakeWorker, Watcher, blank, config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers fork under Linux alone")

FORKING = replace(QUICK, fork_workers=True)
COPY = """
import getpass
import os
from multiprocessing import forkserver
def _bootstrap(_):
    os.setsid()
    commands, _, report = forkserver.get_inherited_fds()
    os.write(report, f"{os.getpid()} {os.getsid(0)} {os.read(commands, 99).decode()}".encode())
    os.read(commands, 99)
    return 7
"""


@pytest.fixture(autouse=True)
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server of its own, whose workers answer once and leave with 7 at the next line."""
    (tmp_path / "copied.py").write_text(COPY)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = forkserver.ForkServer()
    monkeypatch.setattr(spawning, "PRELOAD", "copied")
    for name in ("connect_to_new_process", "set_forkserver_preload"):
        monkeypatch.setattr(forkserver, name, getattr(own, name))
    yield
    own._stop()  # type: ignore[attr-defined]


@contextmanager
def worker() -> Iterator[tuple[ForkedProcess, int]]:
    process, messages = forked()
    try:
        with closing(process.stdout), closing(process.stdin):
            yield process, messages
    finally:
        os.close(messages)


def told(process: ForkedProcess, messages: int, line: str) -> list[str]:
    process.stdin.write(line.encode())
    process.stdin.flush()
    return os.read(messages, 1000).decode().split()


def test_a_forked_worker_is_a_process_of_its_own() -> None:
    with worker() as (first, of_first), worker() as (second, of_second):
        assert told(first, of_first, "one") == [str(first.pid), str(first.pid), "one"]
        assert told(second, of_second, "two") == [str(second.pid), str(second.pid), "two"]
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(timeout=0.0)
        os.killpg(first.pid, signal.SIGKILL)
        assert first.wait(timeout=60.0) == -signal.SIGKILL
        assert os.read(of_first, 10) == b""
        assert second.poll() is None
        second.stdin.close()
        assert second.wait(timeout=60.0) == 7
        assert second.poll() == 7


def test_a_server_that_ends_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forkserver, "connect_to_new_process", Mock(side_effect=ConnectionRefusedError("refused")))
    held = {*Path("/proc/self/fd").iterdir()}
    with pytest.raises(ForkError, match="can't start a process"):
        forked()
    assert {*Path("/proc/self/fd").iterdir()} <= held, "what else was open may be closed meanwhile"


def test_a_run_goes_on_without_its_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unforkable(FakeWorker):
        def __init__(self, *asked: object) -> None:
            if asked[3:] == (True,):
                raise ForkError("the fork server ended")
            super().__init__(*asked)  # type: ignore[arg-type]

    watcher = Watcher()
    monkeypatch.setattr(context, "WorkerProcess", Unforkable)
    monkeypatch.setattr("pipeline.orchestrate.processes.adopt", lambda: None)
    record = run.run_ladder(config("fine", plan=FORKING), tmp_path, blank(), watcher)
    assert [stage.status for stage in record.stages] == ["ok"]
    assert "the fork server ended; from here on each worker is an interpreter of its own" in watcher.said


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_workers_fork_where_the_plan_says_so(device: str, tmp_path: Path) -> None:
    """By default they don't: published figures come from interpreters of their own."""
    plans = [Plan(), QUICK, FORKING]
    contexts = [context.RunContext(config(plan=plan, device=device), tmp_path, blank(), Watcher()) for plan in plans]
    assert [each.forks for each in contexts] == [False, False, True]


def test_a_user_whom_the_system_does_not_know_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError("getpwuid(): uid not found: 7")))
    pipeline.name_the_user()
    assert getpass.getuser() == f"uid{os.getuid()}"
    monkeypatch.delenv("USER")


@pytest.mark.parametrize("name", ["a b", "it's", 'a "b"', "back\\slash"])
def test_workers_know_a_folder_that_a_compiler_would_split_by_a_link(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    known = context.RunContext(config(), folder, blank(), Watcher())
    assert not context.SPLITS.search(str(known.alias))
    assert known.alias.samefile(folder)
    known.drop_what_only_workers_need()
    assert not known.alias.parent.exists()
    assert folder.is_dir()
    assert context.RunContext(config(), tmp_path, blank(), Watcher()).alias is None


@pytest.mark.parametrize(("held", "found"), [("/dev/nvidiactl", True), ("/dev/null", False)])
def test_a_process_that_uses_a_gpu_is_no_fork_server(held: str, found: bool, tmp_path: Path) -> None:
    (tmp_path / "3").symlink_to(held)
    assert holds_gpu(tmp_path) is found


def test_the_fork_server_s_imports_use_no_gpu() -> None:
    """Torch refuses a GPU in a copy of a process that has asked for one, be it for their number alone."""
    asked = (
        "import os, sys, torch, pipeline.worker.preload\n"
        "child = os.fork() or os._exit(torch.cuda._is_in_bad_fork())\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert subprocess.run([sys.executable, "-c", asked, "-"], cwd=ROOT, check=False).returncode == 0
