"""Which candidate is fastest on the GPU at hand: measured once, kept on disk by GPU, versions, shape and dtype."""

import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
import triton

from pipeline.measure.timers import graph_replay_ms
from pipeline.records.atomic_json import write_json
from pipeline.records.error_line import first_line

Candidate = TypeVar("Candidate")

FORMAT = 2  # of the file and of the tiles' fields; a change makes old choices unknown
HOME = Path("~/.cache/unet-ladder")


class NothingRunsError(Exception):
    """No candidate ran; the text says what the last of them said."""


@dataclass
class Tuner:
    """The choices made so far, on disk in `folder`.

    Attributes:
        folder: holds one JSON file for each GPU and set of versions.
        clock: milliseconds that a call takes; a test gives a fake.
        measured: how many candidates were run since the start: 0 for a warm build.
        refused: for an operation the last candidate that didn't run, and why.
    """

    folder: Path = HOME
    clock: Callable[[Callable[[], None]], float] | None = None
    measured: int = 0
    refused: dict[str, str] = field(default_factory=dict)

    def best(self, op: str, options: Iterable[Candidate], run: Callable[[Candidate], None]) -> Candidate:
        """The candidate whose `run` takes the least time, from disk where it is known.

        Args:
            op: names operation, shape and dtype; what differs in any of them is another op.
            options: what to try; each needs a repr that tells it from the others.
            run: queues one call with this candidate on the current stream.

        Raises:
            NothingRunsError: every candidate failed.
        """
        by_name = {repr(option): option for option in options}
        known = str(self.read().get(op, {}).get("choice"))
        if known in by_name:
            return by_name[known]
        calls = {name: partial(run, option) for name, option in by_name.items()}
        if self.clock is None:
            build_side_by_side(list(calls.values()))
        times = {name: self.time(op, name, call) for name, call in calls.items()}
        finite = {name: took for name, took in times.items() if took is not None}
        if not finite:
            raise NothingRunsError(
                f"{op}: none of {len(by_name)} candidates ran: {self.refused.get(op, 'no candidates')}"
            )
        choice = min(finite, key=finite.__getitem__)
        self.write(self.read() | {op: {"choice": choice, "ms": finite[choice], "tried_ms": finite}})
        return by_name[choice]

    def time(self, op: str, name: str, call: Callable[[], None]) -> float | None:
        """Milliseconds of one candidate, or None where it can't run (too much shared memory, most often)."""
        self.measured += 1
        try:
            return (self.clock or graph_replay_ms)(call)
        except (RuntimeError, ValueError, triton.TritonError) as error:
            self.refused[op] = f"{name}: {first_line(error)}"
            return None

    def path(self) -> Path:
        """The file for this GPU and these versions."""
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        name = f"{gpu}-torch{torch.__version__}-triton{triton.__version__}-v{FORMAT}".replace(" ", "_")
        return self.folder.expanduser() / f"{name}.json"

    def read(self) -> dict[str, dict[str, object]]:
        """All choices on disk; none where the file is missing or torn."""
        try:
            known = json.loads(self.path().read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

    def write(self, known: dict[str, dict[str, object]]) -> None:
        """Keep all choices, in one step, so that a reader never sees half a file."""
        path = self.path()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(known, path)


def build_side_by_side(calls: list[Callable[[], None]]) -> None:
    """Call each once, in threads: the compiler releases Python's lock. What fails will fail again when it is timed."""
    device = torch.cuda.current_device()

    def build(call: Callable[[], None]) -> None:
        torch.cuda.set_device(device)
        with suppress(RuntimeError, ValueError, triton.TritonError):
            call()

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        list(pool.map(build, calls))
    torch.cuda.synchronize()
