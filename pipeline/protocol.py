"""The line between the parent and one worker, from both ends.

The job goes over stdin as one JSON line, then one line per command; stdin stays open as a life line (end of file = the
parent is gone: leave). Records come back as JSON lines on a descriptor of their own; stdout and stderr go to a log.
This module imports no torch.

Messages of a worker, each an object with one key of these:
    phase: it enters this phase, whose time limit starts.
    report: fields of its StageRecord, as JSON.
    facts: fields of the RunRecord (only the baseline's worker).
    sample: the answer to "sample".
    turns: it is warm and waits for commands.
    refused: the request was wrong; one line.
    done: nothing more will come.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Iterator
from typing import Any

from pipeline.records.codec import to_json
from pipeline.records.samples import Sample

LOG_LIMIT_BYTES = 2_000_000  # a stage that prints without end fills no disk
GRACE_SECONDS = 5.0  # between TERM and KILL; native code ignores TERM


class PipeReporter:
    """The worker's end."""

    def __init__(self, descriptor: int) -> None:
        self._out = os.fdopen(descriptor, "w", encoding="utf-8")
        self._commands: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self._commands.put(json.loads(line))
        os._exit(3)  # the parent is gone; native code may hold the main thread, so no exception would end it

    def _say(self, kind: str, value: Any) -> None:
        self._out.write(json.dumps({kind: value}) + "\n")
        self._out.flush()

    def job(self) -> dict[str, Any]:
        """The job's document."""
        return self._commands.get()

    def phase(self, name: str) -> None:
        """Say that a phase begins."""
        self._say("phase", name)

    def report(self, **fields: Any) -> None:
        """Give fields of the StageRecord: records or JSON values."""
        self._say("report", {name: plain(value) for name, value in fields.items()})

    def facts(self, **fields: Any) -> None:
        """Give fields of the RunRecord."""
        self._say("details", {name: plain(value) for name, value in fields.items()})

    def refuse(self, text: str) -> None:
        """Say that the request was wrong."""
        self._say("refused", text)

    def sampling(self) -> Iterator[None]:
        """Yields when a sample is wanted; ends when the parent has enough."""
        self._say("sampling", None)
        while self._commands.get()["command"] == "sample":
            yield

    def sample(self, taken: Sample) -> None:
        """Give the sample that was wanted."""
        self._say("sample", to_json(taken))

    def done(self) -> None:
        """Say that nothing more will come."""
        self._say("done", None)


def plain(value: Any) -> Any:
    """Records, and lists of records, as JSON values; anything else as it is."""
    if isinstance(value, list):
        return [plain(part) for part in value]
    return to_json(value) if hasattr(value, "__dataclass_fields__") else value
