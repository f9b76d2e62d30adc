"""The parent's end of a worker: one fresh process group with one job, its messages, its limits and its death."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.config.schema import Job, job_document
from pipeline.protocol import (
    Command,
    Done,
    EndSampling,
    Entered,
    Message,
    Nonsense,
    Phase,
    Refused,
    RunReport,
    SampleTaken,
    StageReport,
    TakeSample,
    decoded,
    encoded,
)
from pipeline.records.codec import fields_from_json
from pipeline.records.masking import MaskedBytes, values_to_hide
from pipeline.records.run_record import FailureKind, RunRecord, StageRecord, Status
from pipeline.records.samples import Sample

LOG_LIMIT_BYTES = 2_000_000  # a stage that prints without end fills no disk
GRACE_SECONDS = 5.0  # between TERM and KILL; native code ignores TERM


class WorkerGone(Exception):  # noqa: N818 - named for what happened
    """The worker ended, or was ended, before it was done; kind, status and text go into the record."""

    def __init__(self, kind: FailureKind, reason: str, status: Status = "failed") -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.status = status


class WorkerProcess:
    """One fresh process group with one job.

    Attributes:
        name: the stage's name.
        fields: what the worker has reported of its StageRecord so far.
        run_fields: what it has reported of the RunRecord.
        phase: the phase that it is in.
        refused: why the request was wrong; None where nothing says so.
    """

    def __init__(self, job: Job, log: Path, limits: Mapping[Phase, float]) -> None:
        self.name = job.stage.name
        self.fields: dict[str, Any] = {}
        self.run_fields: dict[str, Any] = {}
        self.phase = Phase.START
        self.refused: str | None = None
        self._limits = limits
        self._born = time.monotonic()
        self._deadline = self._born + limits[Phase.START]
        self._messages: queue.Queue[Message | None] = queue.Queue()
        read_end, write_end = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.worker", str(write_end)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[write_end],
            start_new_session=True,
        )
        os.close(write_end)
        self._threads = [
            threading.Thread(target=self._collect, args=(read_end,), daemon=True),
            threading.Thread(target=self._keep_log, args=(log,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self._write(json.dumps(job_document(job)) + "\n")

    def _collect(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self._messages.put(decoded(line))
        self._messages.put(None)

    def _keep_log(self, path: Path) -> None:
        assert self._process.stdout is not None
        path.parent.mkdir(parents=True, exist_ok=True)
        left, hiding = LOG_LIMIT_BYTES, MaskedBytes(values_to_hide())
        with path.open("wb") as log:
            while chunk := os.read(self._process.stdout.fileno(), 65536):
                log.write(hiding.add(chunk[: max(left, 0)]))
                log.flush()
                left -= len(chunk)
            log.write(hiding.rest())

    def _command(self, command: Command) -> None:
        self._write(encoded(command))

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # its end of messages follows and says why
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def messages(self) -> Iterator[Message]:
        """What the worker says, until it is done; reports are kept in `fields` and `run_fields` on the way.

        Raises:
            WorkerGone: it died, said what is no message, or outlasted a limit (the process group is then killed).
        """
        while True:
            try:
                message = self._messages.get(timeout=max(0.0, self._deadline - time.monotonic()))
            except queue.Empty:
                self.stop()
                reason = f"{self.phase} took longer than {self._limits[self.phase]:g} s and was ended"
                raise WorkerGone("timeout", reason, "timeout") from None
            if message is None:
                kind, cause = self._death()
                raise WorkerGone(kind, f"died in {self.phase}: {cause}")
            self._keep(message)
            yield message
            if isinstance(message, Done):
                return

    def _keep(self, message: Message) -> None:
        try:
            match message:
                case Entered(phase):
                    self._enter(phase)
                case StageReport(fields):
                    self.fields.update(fields_from_json(StageRecord, fields))
                case RunReport(fields):
                    self.run_fields.update(fields_from_json(RunRecord, fields))
                case Refused(reason):
                    self.refused = reason
                case Nonsense(line, error):
                    raise ValueError(f"{error}: {line!r}")
        except ValueError as error:
            self.stop()
            raise WorkerGone("protocol", f"said what is no message in {self.phase} ({error})") from error

    def _enter(self, phase: Phase) -> None:
        now = time.monotonic()
        if self.phase is Phase.START and phase is not Phase.START:
            self.fields["start_seconds"] = now - self._born
        self.phase = phase
        self._deadline = now + self._limits[phase]

    def sample(self) -> Sample:
        """One timed sample, taken now.

        Raises:
            WorkerGone: as `messages`.
        """
        self._deadline = time.monotonic() + self._limits[Phase.SAMPLING]
        self._command(TakeSample())
        for message in self.messages():
            if isinstance(message, SampleTaken):
                return message.sample
        raise WorkerGone("died", "ended while a sample was being taken")

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        return self._process.poll() is None

    def end_sampling(self) -> None:
        """Let the worker go on to what follows the samples."""
        self._command(EndSampling())

    def _death(self) -> tuple[FailureKind, str]:
        """What ended the process, and how that reads."""
        try:
            code = self._process.wait(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.stop()
            return "died", "the worker closed its pipe but kept running, and was killed"
        self.stop()
        if code == -signal.SIGKILL:
            return "killed", "killed by SIGKILL (out of memory?)"
        return "died", f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def stop(self) -> None:
        """End the whole process group: TERM, a grace, KILL."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, sign)
            except ProcessLookupError:
                break
            try:
                self._process.wait(timeout=GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                continue
        self._process.wait()
        if self._process.stdin:
            with suppress(BrokenPipeError):  # a command that it never read
                self._process.stdin.close()
        for thread in self._threads:
            thread.join(timeout=GRACE_SECONDS)
        if self._process.stdout and not any(thread.is_alive() for thread in self._threads):
            self._process.stdout.close()
