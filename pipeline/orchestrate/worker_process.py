"""The parent's end of a worker: a fresh process group with one job, its messages, time limits and end."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from resource import RUSAGE_CHILDREN
from typing import Any, ClassVar, NoReturn

from pipeline import protocol
from pipeline.devices.host import host_peak_bytes, oom_kills
from pipeline.orchestrate import processes
from pipeline.orchestrate.interruption import waiting
from pipeline.orchestrate.spawning import ForkedProcess, forked, keep_log, name_of, started
from pipeline.records.codec import fields_from_json
from pipeline.records.plan import Phase
from pipeline.records.request import Job
from pipeline.records.run_record import FailureKind, RunRecord, StageRecord, Status
from pipeline.records.samples import Sample

GRACE_SECONDS = 5.0  # between TERM and KILL, as native code ignores TERM
MESSAGE_LIMIT = 64 * 2**20  # characters; the longest seen, the diagnostics of a network of 300 layers, has under 1 MiB
UNREAD_MESSAGES = 1000  # beyond which a talkative worker has to wait
LAST_CALL_SECONDS = 10.0  # that an interruption gives a sample to end
PHASES = list(Phase)


class WorkerGone(Exception):  # noqa: N818 - named for what happened
    """A worker that ended before it was done; kind, status and text go into the record."""

    def __init__(self, kind: FailureKind, reason: str, status: Status = "failed") -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.status = status


class WorkerProcess:
    """One fresh process group with one job."""

    living: ClassVar[set["WorkerProcess"]] = set()

    def __init__(self, job: Job, log: Path, limits: Mapping[Phase, float], fork: bool = False) -> None:
        self.name = job.stage.name
        self.fields: dict[str, Any] = {}
        self.run_fields: dict[str, Any] = {}
        self.phase = Phase.START
        self.refused: str | None = None
        self._limits = limits
        self._born = time.monotonic()
        self._entered = self._born
        self._deadline = self._born + limits[Phase.START]
        self._messages: queue.Queue[protocol.Message | None] = queue.Queue(UNREAD_MESSAGES)
        self._wanted = False
        self._kills_before = oom_kills()
        self._orphans_before = processes.orphans()
        self._process: subprocess.Popen[bytes] | ForkedProcess
        self._process, read_end = forked() if fork else started()
        self.living.add(self)
        self._threads = [
            threading.Thread(target=self._collect, args=(read_end,), daemon=True),
            threading.Thread(target=keep_log, args=(self._process.stdout, log), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self._write(json.dumps(asdict(job)) + "\n")

    def _collect(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as lines:
            while line := lines.readline(MESSAGE_LIMIT):
                self._messages.put(protocol.decoded(line))
        self._messages.put(None)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the end of its messages follows and gives the reason
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def messages(self) -> Iterator[protocol.Message]:
        """Yield the worker's messages until it is done; keep its reports in `fields` and `run_fields`."""
        while True:
            try:
                message = self._next()
            except queue.Empty:
                stopped = ", as a signal had stopped it" if processes.state(self._process.pid) == "T" else ""
                self.stop()
                reason = f"{self.phase} took longer than {self._limits[self.phase]:g} s and was ended{stopped}"
                raise WorkerGone("timeout", reason, "timeout") from None
            if message is None:
                kind, cause = self.death()
                raise WorkerGone(kind, f"died in {self.phase}: {cause}")
            self._keep(message)
            yield message
            if isinstance(message, protocol.Done):
                return

    def _next(self) -> protocol.Message | None:
        """Return the next message, or raise Empty in the end; an interruption first waits for the sample under way."""
        try:
            with waiting():
                return self._messages.get(timeout=max(0.0, self._deadline - time.monotonic()))
        except KeyboardInterrupt:
            if self._wanted:
                with suppress(queue.Empty):
                    self._messages.get(timeout=LAST_CALL_SECONDS)
            raise

    def _keep(self, message: protocol.Message) -> None:
        match message:
            case protocol.Entered(phase):
                self._enter(phase)
            case protocol.Done():
                self._enter(None)
            case protocol.StageReport(fields):
                self.fields.update(self._read(StageRecord, fields))
            case protocol.RunReport(fields):
                self.run_fields.update(self._read(RunRecord, fields))
            case protocol.Refused(reason) if PHASES.index(self.phase) <= PHASES.index(Phase.REFERENCE):
                self.refused = reason
            case protocol.Refused(reason):  # concerns one stage alone
                self.fields |= {"status": "failed", "failure": "error", "reason": reason}
            case protocol.Nonsense(line, error):
                self._give_up(f"{error}: {line!r}")

    def _read(self, kind: type, fields: dict[str, object]) -> dict[str, Any]:
        """Convert a message's JSON fields to the types of the record `kind`."""
        try:
            return fields_from_json(kind, fields)
        except ValueError as error:
            self._give_up(str(error))

    def _give_up(self, why: str) -> NoReturn:
        """Stop the worker because its message can't be used."""
        self.stop()
        raise WorkerGone("protocol", f"sent a message in {self.phase} that can't be used ({why})")

    def _enter(self, phase: Phase | None) -> None:
        """Note the seconds of the phase that ends; None: the worker is done."""
        now = time.monotonic()
        seconds = self.fields.setdefault("phase_seconds", {})
        seconds[self.phase] = seconds.get(self.phase, 0.0) + now - self._entered
        self._entered = now
        if phase is None:
            return
        if self.phase is Phase.START and phase is not Phase.START:
            self.fields["start_seconds"] = now - self._born
        self.phase = phase
        self._deadline = now + self._limits[phase]

    def sample(self, brief: bool = False) -> Sample:
        """Take one timed sample now, a `brief` one with few calls; raise WorkerGone as `messages`, or if it failed."""
        self._enter(Phase.SAMPLING)
        self._wanted = True
        self._write(protocol.encoded(protocol.TakeSample(brief)))
        for message in self.messages():
            if isinstance(message, protocol.SampleTaken):
                self._wanted = False
                return message.sample
        fields = self.fields
        reason = str(fields.get("reason") or "ended while a sample was being taken")
        raise WorkerGone(fields.get("failure") or "died", reason, fields.get("status", "failed"))

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    @property
    def process_id(self) -> int:
        """The id of the process, which leads its group."""
        return self._process.pid

    def end_sampling(self) -> None:
        """Let the worker go on to what follows the samples."""
        self._write(protocol.encoded(protocol.EndSampling()))

    def death(self) -> tuple[FailureKind, str]:
        """Return what ended the process, as a kind and a text."""
        peak_before = host_peak_bytes(RUSAGE_CHILDREN)
        try:
            code = self._process.wait(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.stop()
            return "died", "the worker closed its pipe but kept running, and was killed"
        self.stop()
        if code == -signal.SIGKILL:
            peak = host_peak_bytes(RUSAGE_CHILDREN)
            said = f"; its peak was {peak / 2**30:.3g} GiB" if peak > peak_before else ""
            if oom_kills() > self._kills_before:
                return "out of memory", f"killed by the system, which had run out of memory{said}"
            return "killed", f"killed by SIGKILL (out of memory?){said}"
        return "died", f"killed by {name_of(-code)}" if code < 0 else f"exit code {code}"

    def stop(self) -> None:
        """End the worker and all that it started: TERM, a grace, KILL."""
        started_by_it = processes.descendants([self._process.pid], processes.parents())
        self.resume()  # or it would not hear TERM
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if not self._signal(sign):
                break
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=GRACE_SECONDS)
        self.living.discard(self)
        left = processes.orphans() - self._orphans_before - {worker.process_id for worker in self.living}
        processes.end((started_by_it & processes.parents().keys()) | left)
        with suppress(subprocess.TimeoutExpired):  # a driver may hold the process for ever
            self._process.wait(timeout=GRACE_SECONDS)
        if self._process.stdin:
            with suppress(BrokenPipeError):  # a command that was never read
                self._process.stdin.close()
        ended = time.monotonic() + GRACE_SECONDS
        while self._threads[0].is_alive() and time.monotonic() < ended:
            with suppress(queue.Empty):  # its thread may wait for room
                self._messages.get(timeout=0.05)
        for thread in self._threads:
            thread.join(timeout=GRACE_SECONDS)
        if self._process.stdout and not any(thread.is_alive() for thread in self._threads):
            self._process.stdout.close()

    def suspend(self) -> None:
        """Stop the worker's process group until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the worker's process group go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> bool:
        """Send the process group a signal; return False where nothing is left of it."""
        if self not in self.living:
            return False
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return False
        return True


def kill_all() -> None:
    """Kill every worker and all that any of them started."""
    for worker in list(WorkerProcess.living):
        with suppress(ProcessLookupError):
            os.killpg(worker._process.pid, signal.SIGKILL)
    processes.end(processes.descendants([os.getpid()], processes.parents()))
