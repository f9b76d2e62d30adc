"""The messages between the parent and a worker, and the worker's end of the pipe.

The worker reads its job from stdin as one JSON line, then one line for each command. End of file means that the parent
has ended. Messages come back as JSON lines on their own descriptor; stdout and stderr go to a log.
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

# A failure in these phases does not change the status of a stage that was right and measured.
AFTER_CHECK = frozenset({Phase.LATENCIES, Phase.HOST_PATH, Phase.PROFILE, Phase.OBSERVE, Phase.EXPLAIN, Phase.EXPORT})


class Entered(msgspec.Struct, tag="entered", frozen=True):
    """The worker enters a phase, whose time limit starts."""

    phase: Phase


class Progress(msgspec.Struct, tag="progress", frozen=True):
    """The progress within a phase, for a person; the time limit continues."""

    text: str


class StageReport(msgspec.Struct, tag="stage", frozen=True):
    """Some fields of the worker's StageRecord; later reports replace earlier ones."""

    fields: dict[str, object]


class RunReport(msgspec.Struct, tag="run", frozen=True):
    """Some fields of the RunRecord; only the worker of the reference sends them."""

    fields: dict[str, object]


class ReadyToSample(msgspec.Struct, tag="ready", frozen=True):
    """The stage is warm; the worker waits for commands."""


class SampleTaken(msgspec.Struct, tag="sample", frozen=True):
    """The answer to TakeSample."""

    sample: Sample


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """A wrong request; the reason is one line."""

    reason: str


class Done(msgspec.Struct, tag="done", frozen=True):
    """The last message."""


class Nonsense(msgspec.Struct, tag="nonsense", frozen=True):
    """A line that the parent could not decode."""

    line: str
    error: str


class TakeSample(msgspec.Struct, tag="sample", frozen=True):
    """Command: take one sample now; a `brief` one has few calls."""

    brief: bool = False


class EndSampling(msgspec.Struct, tag="end", frozen=True):
    """Command: continue with the phases after the samples."""


Message = Entered | Progress | StageReport | RunReport | ReadyToSample | SampleTaken | Refused | Done | Nonsense
Command = TakeSample | EndSampling
QUOTED_CHARACTERS = 200  # of a line that is no message
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def encoded(message: Message | Command) -> str:
    """Encode a message as one line of JSON."""
    return json.dumps(msgspec.to_builtins(message)) + "\n"


def decoded(line: str) -> Message:
    """Decode a line from a worker; return Nonsense if it is no message."""
    try:
        return msgspec.convert(json.loads(line), Message)  # type: ignore[no-any-return]
    except (ValueError, RecursionError) as error:
        return Nonsense(line.strip()[:QUOTED_CHARACTERS], first_line(error))


def die_with_the_parent() -> None:
    """Have Linux end this process when its parent dies; native code that holds the GIL sees no closed pipe."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class PipeReporter:
    """The worker's end. It takes over stdin, so that code which reads stdin finds end of file."""

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
        """Return the job as plain JSON values."""
        return json.loads(self._lines.get())

    def enter(self, phase: Phase) -> None:
        """Report that a phase begins."""
        self.phase = phase
        self._say(Entered(phase))

    def progress(self, text: str) -> None:
        """Report the progress of the phase."""
        self._say(Progress(text))

    def report(self, **fields: object) -> None:
        """Report fields of the StageRecord: dataclasses or JSON values."""
        self._say(StageReport(fields))

    def report_run(self, **fields: object) -> None:
        """Report fields of the RunRecord."""
        self._say(RunReport(fields))

    def refuse(self, reason: str) -> None:
        """Report that the request was wrong."""
        self._say(Refused(reason))

    def sampling(self) -> Iterator[TakeSample]:
        """Yield the parent's requests for samples until it has enough."""
        self._say(ReadyToSample())
        while not isinstance(asked := msgspec.convert(json.loads(self._lines.get()), Command), EndSampling):
            yield asked

    def sample(self, taken: Sample) -> None:
        """Report the sample."""
        self._say(SampleTaken(taken))

    def done(self) -> None:
        """Report the end of the messages."""
        self._say(Done())
