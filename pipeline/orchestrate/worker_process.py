"""The parent's end of a worker: one fresh process group with one job, its messages, its limits and its death."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipeline.config.schema import Job, job_document
from pipeline.records.codec import from_json
from pipeline.records.samples import Sample

LOG_LIMIT_BYTES = 2_000_000  # a stage that prints without end fills no disk
GRACE_SECONDS = 5.0  # between TERM and KILL; native code ignores TERM


class WorkerGone(Exception):  # noqa: N818 - named for what happened
    """The worker ended, or was ended, before it was done; `status` and the text go into the record."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class WorkerProcess:
    """The parent's end: one fresh process group with one job.

    Attributes:
        name: the stage's name.
        fields: what the worker has reported of its StageRecord so far.
        facts: what it has reported of the RunRecord.
        phase: the phase that it is in.
    """

    def __init__(self, job: Job, log: Path, limits: dict[str, float]) -> None:
        self.name = job.stage.name
        self.fields: dict[str, Any] = {}
        self.details: dict[str, Any] = {}
        self.phase = "start"
        self.refused: str | None = None
        self._limits = limits
        self._born = time.monotonic()
        self._deadline = self._born + limits["start"]
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
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
        self._command(job_document(job))

    def _collect(self, descriptor: int) -> None:
        with os.fdopen(descriptor, encoding="utf-8") as lines:
            for line in lines:
                self._messages.put(json.loads(line))
        self._messages.put(None)

    def _keep_log(self, path: Path) -> None:
        assert self._process.stdout is not None
        path.parent.mkdir(parents=True, exist_ok=True)
        left = LOG_LIMIT_BYTES
        with path.open("wb") as log:
            while chunk := os.read(self._process.stdout.fileno(), 65536):
                log.write(chunk[: max(left, 0)])
                log.flush()
                left -= len(chunk)

    def _command(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # its end of messages follows and says why
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def messages(self) -> Iterator[tuple[str, Any]]:
        """What the worker says, until it says "done"; reports are folded into `fields` and `facts` on the way.

        Raises:
            WorkerGone: it died, or a phase outlasted its limit (the process group is then killed).
        """
        while True:
            try:
                message = self._messages.get(timeout=max(0.0, self._deadline - time.monotonic()))
            except queue.Empty:
                self.stop()
                limit = self._limits[self.phase]
                raise WorkerGone("timeout", f"{self.phase} took longer than {limit:g} s and was ended") from None
            if message is None:
                raise WorkerGone("failed", f"died in {self.phase}: {self._death()}")
            [(kind, value)] = message.items()
            self._fold(kind, value)
            yield kind, value
            if kind == "done":
                return

    def _fold(self, kind: str, value: Any) -> None:
        if kind == "phase":
            if self.phase == "start" != value:
                self.fields["start_seconds"] = time.monotonic() - self._born
            self.phase = value
            self._deadline = time.monotonic() + self._limits[value]
        elif kind == "report":
            self.fields.update(value)
        elif kind == "details":
            self.details.update(value)
        elif kind == "refused":
            self.refused = value

    def sample(self) -> Sample:
        """One timed sample, taken now.

        Raises:
            WorkerGone: as `messages`.
        """
        self._deadline = time.monotonic() + self._limits["sampling"]
        self._command({"command": "sample"})
        for kind, value in self.messages():
            if kind == "sample":
                return from_json(Sample, value)
        raise WorkerGone("failed", "ended while its turn was on")

    @property
    def alive(self) -> bool:
        """Whether its process still runs."""
        return self._process.poll() is None

    def end_turns(self) -> None:
        """Let the worker go on to what follows the turns."""
        self._command({"command": "end"})

    def _death(self) -> str:
        try:
            code = self._process.wait(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.stop()
            return "it closed its line and went on, and was ended"
        self.stop()
        if code < 0:
            return f"killed by {signal.Signals(-code).name}" + (" (out of memory?)" if code == -signal.SIGKILL else "")
        return f"exit code {code}"

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
