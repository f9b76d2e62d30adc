"""What a person sees while a run is on its way: a live line on a terminal, plain lines elsewhere."""

import os
import sys
import time
from contextlib import suppress
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from pipeline.command_line import tell
from pipeline.records.masking import masked, referred_to, values_to_hide
from pipeline.records.run_record import RunRecord, StageRecord
from pipeline.report.formatting import clean, elapsed, visible
from pipeline.report.terminal import outcome_line

NARROWEST, WIDEST = 20, 400  # columns: nothing fits in fewer, and lines are filled up to as many as there are

SILENCE = 30.0  # seconds, after which a log of lines is told how far a phase is

# Of what a cell of Jupyter starts, on a terminal that keeps every line; FORCE_COLOR, which Jupyter sets, makes rich
# take a pipe for one as well.
IN_A_NOTEBOOK = "JPY_PARENT_PID"


class SteadyConsole(Console):
    """A console of a width that can be written in, which falls silent where nobody takes what it says."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not NARROWEST <= self.width <= WIDEST:  # by COLUMNS, or a terminal that says 0
            self.width = min(WIDEST, max(NARROWEST, self.width))

    def on_broken_pipe(self) -> None:
        """Say nothing from now on; rich's own would end the program."""
        self.quiet = True

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, where the disk takes it or the pipe has room."""
        with suppress(OSError, ValueError):
            super().print(*objects, **options)


class Progress:
    """Says which stage, which phase and for how long; to stderr, so that stdout holds only the answer."""

    def __init__(self, stages: int, console: Console | None = None) -> None:
        self.console = console or SteadyConsole(stderr=True, highlight=False)
        self.stages = stages
        self.number = 0
        self.began = time.monotonic()
        self.last, self.said = "", self.began
        self.status: Status | None = None

    def __enter__(self) -> Self:
        """Begin the live line, where there is a terminal."""
        if self.console.is_terminal and self.console.file.isatty() and IN_A_NOTEBOOK not in os.environ:
            self.status = self.console.status("starting")
            self.status.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the live line."""
        if self.status:
            self.status.stop()

    def say(self, text: str) -> None:
        """A line that stays; a terminal that is gone costs no measurement."""
        self.said = time.monotonic()
        self.console.print(visible(text), markup=False, soft_wrap=True)

    def stage_started(self, name: str, adds: str) -> None:
        """The next stage begins."""
        self.number += 1
        self.say(f"[{self._elapsed()}] {self.number}/{self.stages} {name}: {adds}")

    def phase_entered(self, title: str, phase: str, detail: str = "") -> None:
        """A stage enters a phase, or is so far in it; a log is told the latter after half a minute of silence."""
        line = f"{title}: {phase}"
        if self.status:
            self.status.update(escape(visible(f"[{self._elapsed()}] {line} {detail}")))
        elif line != self.last:
            self.say(f"[{self._elapsed()}]   {line}")
        elif detail and time.monotonic() - self.said >= SILENCE:
            self.say(f"[{self._elapsed()}]   {line}: {detail}")
        self.last = line

    def stage_finished(self, run: RunRecord, stage: StageRecord) -> None:
        """What became of a stage."""
        self.say(f"[{self._elapsed()}]   {outcome_line(run, stage)}")

    def _elapsed(self) -> str:
        """Minutes and seconds since the run began, as 1:05."""
        return elapsed(time.monotonic() - self.began)


def print_error(text: str) -> None:
    """One line on stderr about a request that can't be carried out."""
    tell(f"error: {clean(masked(text, values_to_hide(referred_to(sys.argv))))}")
