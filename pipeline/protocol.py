"""The messages between the parent and one worker, and the worker's end of the pipe.

The job goes to the worker's stdin as one JSON line, then one line per command; stdin stays open as a life line: end of
file means that the parent is gone. Messages come back as JSON lines on a descriptor of their own; stdout and stderr go
to a log.
"""

import ctypes
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator

import msgspec

from pipeline.errors import first_line
from pipeline.records.plan import Phase
from pipeline.records.samples import Sample

# A stage that was right and measured stays so whatever these come to.
AFTER_CHECK = frozenset({Phase.LATENCIES, Phase.HOST_PATH, Phase.PROFILE, Phase.OBSERVE, Phase.EXPLAIN, Phase.EXPORT})


class Entered(msgspec.Struct, tag="entered", frozen=True):
    """The worker enters a phase, whose time limit starts."""

    phase: Phase


class Progress(msgspec.Struct, tag="progress", frozen=True):
    """How far the worker is within its phase, in words for a person; the phase's time limit goes on."""

    text: str


class StageReport(msgspec.Struct, tag="stage", frozen=True):
    """Fields of the worker's StageRecord."""

    fields: dict[str, object]


class RunReport(msgspec.Struct, tag="run", frozen=True):
    """Fields of the RunRecord; only the reference's worker sends them."""

    fields: dict[str, object]


class ReadyToSample(msgspec.Struct, tag="ready", frozen=True):
    """The stage is warm and waits for commands."""


class SampleTaken(msgspec.Struct, tag="sample", frozen=True):
    """The answer to TakeSample."""

    sample: Sample


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """The request was wrong; one line."""

    reason: str


class Done(msgspec.Struct, tag="done", frozen=True):
    """Nothing more will come."""


class Nonsense(msgspec.Struct, tag="nonsense", frozen=True):
    """A line that is no message, as the parent read it."""

    line: str
    error: str


class TakeSample(msgspec.Struct, tag="sample", frozen=True):
    """To the worker: take one sample now."""


class EndSampling(msgspec.Struct, tag="end", frozen=True):
    """To the worker: go on to what follows the samples."""


Message = Entered | Progress | StageReport | RunReport | ReadyToSample | SampleTaken | Refused | Done | Nonsense
Command = TakeSample | EndSampling
QUOTED_CHARACTERS = 200  # of a line that is no message
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def encoded(message: Message | Command) -> str:
    """One line of JSON."""
    return json.dumps(msgspec.to_builtins(message)) + "\n"


def decoded(line: str) -> Message:
    """The message in a line from a worker; Nonsense for a line that holds none."""
    try:
        return msgspec.convert(json.loads(line), Message)  # type: ignore[no-any-return]
    except (ValueError, RecursionError) as error:
        return Nonsense(line.strip()[:QUOTED_CHARACTERS], first_line(error))


def die_with_the_parent() -> None:
    """Have Linux end this process when its parent dies: native code that holds Python's lock hears of no pipe."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class PipeReporter:
    """The worker's end. The commands come on what was stdin: whoever asks there for an answer finds its end at once.

    Attributes:
        phase: what the worker is at.
    """

    def __init__(self, descriptor: int) -> None:
        self._out = os.fdopen(descriptor, "w", encoding="utf-8")
        self._commands, sys.stdin = sys.stdin, os.fdopen(os.open(os.devnull, os.O_RDONLY))
        self._speaker = os.getpid()
        self._lines: queue.Queue[str] = queue.Queue()
        self.phase = Phase.START
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._commands:
            self._lines.put(line)
        os._exit(3)  # the parent is gone; native code may hold the main thread, so no exception would end it

    def _say(self, message: Message) -> None:
        if os.getpid() != self._speaker:
            os._exit(4)  # a copy that a stage forked: two processes would answer as one
        self._out.write(encoded(message))
        self._out.flush()

    def job(self) -> object:
        """The job's document, as plain JSON values."""
        return json.loads(self._lines.get())

    def enter(self, phase: Phase) -> None:
        """Say that a phase begins."""
        self.phase = phase
        self._say(Entered(phase))

    def progress(self, text: str) -> None:
        """Say how far the phase is."""
        self._say(Progress(text))

    def report(self, **fields: object) -> None:
        """Give fields of the StageRecord: dataclasses or JSON values."""
        self._say(StageReport(fields))

    def report_run(self, **fields: object) -> None:
        """Give fields of the RunRecord."""
        self._say(RunReport(fields))

    def refuse(self, reason: str) -> None:
        """Say that the request was wrong."""
        self._say(Refused(reason))

    def sampling(self) -> Iterator[TakeSample]:
        """Yields what is wanted; ends when the parent has enough."""
        self._say(ReadyToSample())
        while not isinstance(asked := self._command(), EndSampling):
            yield asked

    def _command(self) -> Command:
        return msgspec.convert(json.loads(self._lines.get()), Command)  # type: ignore[no-any-return]

    def sample(self, taken: Sample) -> None:
        """Give the sample that was wanted."""
        self._say(SampleTaken(taken))

    def done(self) -> None:
        """Say that nothing more will come."""
        self._say(Done())
