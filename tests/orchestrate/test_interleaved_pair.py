"""While one of two workers is timed, the other one is stopped with all that it has started, and can't touch it."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pipeline.orchestrate import interleaved_pair, offspring, worker_process
from pipeline.orchestrate.interleaved_pair import (
    Conditions,
    InterleavedWorker,
    changed,
    conditions_of,
    give_back,
    interleaved,
)
from pipeline.orchestrate.worker_process import WorkerGone, WorkerProcess
from pipeline.protocol import ReadyToSample, SampleTaken, encoded
from pipeline.records.plan import Phase
from pipeline.records.samples import Sample
from tests.orchestrate.script_worker import LIMITS, Start

pytestmark = pytest.mark.fresh_process

PYTHON = sys.executable
READY, SAMPLE = encoded(ReadyToSample()), encoded(SampleTaken(Sample(1, 0.5, None)))
HONEST = f"say({READY!r})\nwhile heard(): say({SAMPLE!r})"
BURNS = "import time\nwhile time.sleep(0.001) is None: pass"


def family(worker: WorkerProcess) -> list[str]:
    """The state of the worker and of its child, once there is one."""
    ends = time.monotonic() + 5
    while time.monotonic() < ends and len(worker._family.members()) < 2:
        time.sleep(0.01)
    return [offspring.state(process) for process in worker._family.members()]


def ready(worker: WorkerProcess) -> WorkerProcess:
    next(iter(worker.messages()))
    return worker


def until(right: Callable[[], bool]) -> bool:
    """Whether it comes true within a second: a signal takes a moment."""
    ends = time.monotonic() + 1
    while not right() and time.monotonic() < ends:
        time.sleep(0.005)
    return right()


def test_whoever_is_not_timed_is_stopped_with_its_children(start: Start) -> None:
    """Also a child in a session of its own; all of them go on when their own side is timed, and at the end."""
    honest = ready(start(HONEST))
    burning = f"subprocess.Popen([{PYTHON!r}, '-SEc', {BURNS!r}], start_new_session=True)\n{HONEST}"
    stage = ready(start(burning))
    assert len(family(stage)) == 2
    with interleaved(honest, stage) as (first, second):
        first.sample()
        assert until(lambda: family(stage) == ["T", "T"])
        assert offspring.state(honest.process_id) != "T"
        second.sample()
        assert until(lambda: "T" not in family(stage))
        assert until(lambda: offspring.state(honest.process_id) == "T")
    assert until(lambda: "T" not in [*family(stage), offspring.state(honest.process_id)])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_was_ended_while_it_waited_is_told_so(number: int, start: Start) -> None:
    """Nothing of its own ran at that time; the stage is then measured once more, with no other worker in reach."""
    honest, stage = ready(start(HONEST)), ready(start(HONEST))
    os.kill(honest.process_id, number)
    honest._process.wait(timeout=5)
    with pytest.raises(WorkerGone, match=f"killed by {signal.Signals(number).name}.* while it waited") as gone:
        InterleavedWorker(honest, stage).sample()
    assert gone.value.kind == "killed"


def test_a_worker_that_is_given_other_conditions_counts_no_more(start: Start) -> None:
    """Niceness any process may raise for another one of its user; the baseline is then to be started anew."""
    honest, stage = ready(start(HONEST)), ready(start(HONEST))
    before = os.getpriority(os.PRIO_PROCESS, honest.process_id)
    said = rf"other conditions: niceness \[{before}\] → \[{before + 1}\]"
    with pytest.raises(WorkerGone, match=said) as gone, interleaved(honest, stage):
        os.setpriority(os.PRIO_PROCESS, honest.process_id, before + 1)
    assert gone.value.kind == "broken contract"
    assert not honest.alive


def test_conditions_that_a_stage_changed_in_its_build_are_seen(start: Start) -> None:
    """Before the two were interleaved."""
    honest = ready(start(HONEST))
    before = conditions_of(honest.process_id)
    stage = ready(start(HONEST))
    os.setpriority(os.PRIO_PROCESS, honest.process_id, os.getpriority(os.PRIO_PROCESS, honest.process_id) + 1)
    with pytest.raises(WorkerGone, match="other conditions: niceness"), interleaved(honest, stage, before):
        pass


ELSE: dict[str, tuple[Callable[[int], object], str]] = {
    "a limit": (lambda process: resource.prlimit(process, resource.RLIMIT_CPU, (10**6, 10**6)), "limits: Max cpu time"),
    "when memory runs out": (lambda process: given(process, "oom_score_adj", "500"), "oom_score_adj: 0 → "),
    "its session's niceness": (lambda process: given(process, "autogroup", "5"), "nice 0 → autogroup: "),
    "a tracer": (lambda process: ctypes.CDLL(None).ptrace(PTRACE_SEIZE, process, None, None), "status: TracerPid: 0 →"),
}
PTRACE_SEIZE = 0x4206  # linux/ptrace.h


def given(process: int, name: str, value: str) -> None:
    with (offspring.PROC / str(process) / name).open("w") as file:
        file.write(value)


@pytest.mark.parametrize("kind", ELSE)
def test_whatever_the_system_tells_of_a_process_is_part_of_its_conditions(kind: str) -> None:
    """What any process may do to another one of its user."""
    do, said = ELSE[kind]
    with subprocess.Popen(["sleep", "30"], start_new_session=True) as child:
        before = conditions_of(child.pid)
        try:
            denied = do(child.pid) == -1
        except OSError:
            denied = True
        after = conditions_of(child.pid)
        child.kill()
    if denied:
        pytest.skip("this system doesn't let it")
    assert said in changed(before, after)


def test_the_run_s_own_conditions_are_given_back() -> None:
    """A stage may have taken them, and every further worker has them."""
    before = conditions_of(os.getpid())
    assert before is not None
    if len(before.processors) == 1:
        pytest.skip("there is one processor")
    threads = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    try:
        for thread in threads:
            os.sched_setaffinity(thread, {min(before.processors)})
        assert "processors" in changed(before, conditions_of(os.getpid()))
        give_back(before)
        assert changed(before, conditions_of(os.getpid())) == ""
    finally:
        for thread in threads:
            with suppress(OSError):
                os.sched_setaffinity(thread, before.processors)
    give_back(None)


def test_a_session_s_niceness_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it all that is started in it may starve."""
    own = tmp_path / "self"
    (own / "task").mkdir(parents=True)
    (own / "autogroup").write_text("/autogroup-1 nice 19")
    monkeypatch.setattr(interleaved_pair, "PROC", tmp_path)
    give_back(Conditions(frozenset({0}), frozenset({0}), frozenset({0}), frozenset({"autogroup: /autogroup-1 nice 0"})))
    assert (own / "autogroup").read_text() == "0"


def test_a_worker_that_cannot_be_stopped_is_told_so(monkeypatch: pytest.MonkeyPatch, start: Start) -> None:
    honest, stage = ready(start(HONEST)), ready(start(HONEST))
    monkeypatch.setattr(stage, "suspend", lambda: False)
    with pytest.raises(WorkerGone, match="eager starts processes faster than they can be stopped") as gone:
        InterleavedWorker(honest, stage).take()
    assert gone.value.kind == "broken contract"


def test_processors_are_part_of_the_conditions() -> None:
    """Of any thread; where the system says nothing, nothing is said."""
    own = conditions_of(os.getpid())
    assert own is not None
    assert own.processors == os.sched_getaffinity(0)
    fewer = Conditions(frozenset({999}), own.niceness, own.scheduling)
    assert changed(own, fewer).endswith("→ [999]")
    assert changed(own, own) == changed(None, own) == changed(own, conditions_of(-1)) == ""


def test_a_worker_that_a_signal_has_stopped_is_told_so(start: Start) -> None:
    """A hang is another thing."""
    worker = start("os.kill(os.getpid(), signal.SIGSTOP)", limits={**LIMITS, Phase.START: 0.2})
    with pytest.raises(WorkerGone, match=r"took longer than 0\.2 s and was ended, as a signal had stopped it"):
        next(iter(worker.messages()))


def test_a_stopped_worker_ends_as_any_other(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hears TERM, whatever else the cores are at, and nothing is waited for."""
    monkeypatch.setattr(worker_process, "GRACE_SECONDS", 5.0)
    worker = ready(start(f"signal.signal(signal.SIGTERM, lambda *_: os._exit(7))\n{HONEST}"))
    worker.suspend()
    worker.stop()
    assert worker._process.returncode in (7, -signal.SIGTERM)
