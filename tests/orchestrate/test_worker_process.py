"""The parent's end of a worker: whatever a process does on its pipes, or leaves behind, ends as one line."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from pipeline.orchestrate import interruption, processes, worker_process
from pipeline.orchestrate.worker_process import WorkerGone, WorkerProcess, kill_all
from pipeline.protocol import Done, Entered, PipeReporter, ReadyToSample, Refused, SampleTaken, StageReport, encoded
from pipeline.records.plan import Phase
from pipeline.records.samples import Sample
from tests.worker.jobs import EAGER, PLAN, job

pytestmark = pytest.mark.fresh_process

LIMITS = {**PLAN.phase_limits, Phase.START: 20.0, Phase.SAMPLING: 20.0}
PRELUDE = """
import os, signal, subprocess, sys, time
def say(line):
    os.write(int(sys.argv[4]), line.encode())
def says(line):
    say(line + chr(10))
    time.sleep(60)
def heard():
    return sys.stdin.readline()
heard()
"""
Start = Callable[..., WorkerProcess]
READY, DONE = encoded(ReadyToSample()), encoded(Done())
SAMPLE = encoded(SampleTaken(Sample(1, 0.5, None)))
KEYS = ("failure", "reason", "status")


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a worker that does as its script says, in an interpreter without anything."""
    workers: list[WorkerProcess] = []
    python = sys.executable

    def started(script: str, log: Path | None = None, limits: dict[Phase, float] = LIMITS) -> WorkerProcess:
        program = tmp_path / f"python{len(workers)}"
        program.write_text(f"#!{python} -SE\n{PRELUDE}{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(program))
        workers.append(WorkerProcess(job(EAGER, tmp_path), log or tmp_path / "log.txt", limits))
        return workers[-1]

    yield started
    for worker in workers:
        worker.stop()


def gone(worker: WorkerProcess) -> WorkerGone:
    with pytest.raises(WorkerGone) as caught:
        list(worker.messages())
    assert "\n" not in caught.value.reason
    assert not worker.alive
    return caught.value


@pytest.mark.parametrize(
    ("deed", "kind", "reason"),
    [
        ("sys.exit(0)", "died", "died in start: exit code 0"),
        ("sys.exit(77)", "died", "exit code 77"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "died", "killed by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed", "killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 3)", "died", f"killed by signal {signal.SIGRTMIN + 3}"),
        ("os.close(int(sys.argv[4])); time.sleep(60)", "died", "closed its pipe but kept running"),
        ("say('x' * 3000); time.sleep(60)", "protocol", "can't be used"),
        ("says('oh no')", "protocol", "sent a message in start that can't be used"),
        ("""says('{"type": "entered", "phase": "lunch"}')""", "protocol", "lunch"),
        ("""says('{"type": "stage", "fields": {"status": "foo"}}')""", "protocol", "foo"),
        ("""says('{"type": "stage", "fields": {"no_such_field": 1}}')""", "protocol", "no_such_field"),
        ("""says('{"type": "run", "fields": {"drift": "much"}}')""", "protocol", "float"),
    ],
)
def test_however_a_worker_ends_there_is_a_kind_and_a_reason(
    deed: str, kind: str, reason: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "MESSAGE_LIMIT", 1000)
    monkeypatch.setattr(worker_process, "GRACE_SECONDS", 0.3 if "kept running" in reason else 60.0)
    end = gone(start(deed))
    assert (end.kind, end.status) == (kind, "failed")
    assert reason in end.reason


def test_a_worker_that_dies_at_a_sample_is_gone_in_sampling(start: Start) -> None:
    worker = start(f"say({READY!r}); heard(); time.sleep(60)", limits={**LIMITS, Phase.SAMPLING: 0.2})
    next(iter(worker.messages()))
    with pytest.raises(WorkerGone, match=r"sampling took longer than 0\.2 s"):
        worker.sample()


def test_a_stage_refuses_itself_and_no_run(start: Start) -> None:
    build, refused = encoded(Entered(Phase.BUILD)), encoded(Refused("no such image"))
    worker = start(f"say({build + refused + DONE!r}); heard()")
    list(worker.messages())
    assert worker.refused is None
    assert worker.fields["reason"] == "no such image"
    worker = start(f"say({refused + DONE!r}); heard()")
    list(worker.messages())
    assert worker.refused == "no such image"


def test_a_stage_that_fails_at_a_sample_fails_as_it_says(start: Start) -> None:
    said = {"status": "failed", "failure": "out of memory", "reason": "out of memory: 20 GiB"}
    worker = start(f"say({READY!r}); heard(); say({encoded(StageReport(dict(said))) + DONE!r}); heard()")
    next(iter(worker.messages()))
    with pytest.raises(WorkerGone) as caught:
        worker.sample()
    assert (caught.value.kind, caught.value.reason, caught.value.status) == tuple(said[key] for key in KEYS)


def test_the_system_s_lack_of_memory_is_told_from_any_other_kill(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "oom_kills", iter((3, 4)).__next__)  # at its start and after its end
    end = gone(start("os.kill(os.getpid(), signal.SIGKILL)"))
    assert end.kind == "out of memory"
    assert "killed by the system, which had run out of memory" in end.reason


def test_a_log_that_cannot_be_written_holds_nobody_up(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    worker = start(f"print('x' * 1000000); say({DONE!r})", log=tmp_path / "file" / "log.txt")
    assert list(worker.messages()) == [Done()]


@pytest.fixture
def adopting() -> Iterator[None]:
    processes.adopt()
    yield
    ctypes.CDLL(None).prctl(processes.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


FORKS = """
if (child := os.fork()) == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, ["sleeper", "-c", "import time; time.sleep(60)"], {})
    os._exit(0)
subprocess.Popen([sys.executable, "-SEc", "import time; time.sleep(60)"], start_new_session=True)
os.waitpid(child, 0)
"""


def test_nothing_that_a_worker_started_outlives_it(start: Start, adopting: None) -> None:
    worker = start(f"{FORKS}\nsay({DONE!r}); time.sleep(60)".replace("sys.executable", repr(sys.executable)))
    list(worker.messages())
    detached = processes.orphans() - {worker._process.pid}
    its_own = detached | processes.descendants([worker._process.pid], processes.parents())
    assert len(detached) >= 1
    assert len(its_own) >= 2
    worker.stop()
    ended = time.monotonic() + 60  # the system takes a moment from a kill to the end
    while running := {pid for pid in its_own if processes.state(pid) not in ("", "Z")}:
        assert time.monotonic() < ended, running
        time.sleep(0.01)


def test_a_worker_that_no_signal_ends_holds_up_nobody(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a driver may keep a process for ever: it is waited for no longer than its graces."""
    monkeypatch.setattr(worker_process, "GRACE_SECONDS", 0.3)
    worker = start("time.sleep(600)")
    process = worker._process
    with monkeypatch.context() as patched:
        patched.setattr(os, "killpg", lambda *_: None)
        patched.setattr(processes, "end", lambda _: None)
        worker.stop()
    assert process.poll() is None
    assert worker not in WorkerProcess.living
    os.kill(process.pid, signal.SIGKILL)


def test_every_worker_can_be_ended_at_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a grace, and whatever else this process has started; here that is the test's own."""
    ended: list[bool] = []
    monkeypatch.setattr(processes, "end", lambda _: ended.append(True))
    workers = [start("signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)") for _ in range(2)]
    kill_all()
    assert [worker._process.wait(timeout=60) for worker in workers] == [-signal.SIGKILL] * 2
    assert ended


class Twice(Exception):  # noqa: N818 - named for what came
    """Raised where a test's second signal would end the process."""


at_once = Mock(side_effect=Twice)


@pytest.mark.usefixtures("at_a_terminal")
@pytest.mark.parametrize("number", interruption.SIGNALS, ids=lambda number: number.name)
def test_one_signal_ends_the_call_that_is_on_its_way_and_nothing_else(number: int, start: Start) -> None:
    ends_it = f"os.kill(os.getppid(), {number:d})"
    worker = start(f"say({READY!r}); heard(); {ends_it}; time.sleep(0.5); say({SAMPLE!r}); heard()")
    next(iter(worker.messages()))
    with interruption.heeded(at_once), interruption.run():
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            worker.sample()
        assert time.monotonic() - began >= 0.4
        assert worker.alive
        assert worker._messages.empty()


def test_a_signal_between_two_waits_takes_effect_at_the_next(start: Start) -> None:
    worker = start(f"say({READY!r}); time.sleep(60)")
    with interruption.heeded(at_once), interruption.run():
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.asked()
        with pytest.raises(KeyboardInterrupt):
            next(iter(worker.messages()))
        with pytest.raises(Twice):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is not interruption._interrupted


@pytest.mark.usefixtures("at_a_terminal")
def test_outside_a_run_a_signal_takes_effect_at_once() -> None:
    with interruption.heeded(at_once), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGHUP)


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruption.heeded(at_once):
            os.kill(os.getpid(), signal.SIGHUP)
        assert not interruption.asked()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_copy_of_the_worker_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that forks, and whose both sides go on, would have two processes answer as one."""
    reporter = object.__new__(PipeReporter)
    reporter._speaker = os.getpid() + 1
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit, match="4"):
        reporter.done()
