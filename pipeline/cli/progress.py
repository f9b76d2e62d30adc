"""The progress of a run: a live line on a terminal, plain lines elsewhere."""

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

NARROWEST, WIDEST = 20, 400  # columns

SILENCE = 30.0  # seconds without a line, after which plain lines also tell the details of a phase

# Set in processes that a cell of Jupyter starts, whose terminal keeps every line. Jupyter also sets FORCE_COLOR, with
# which rich takes a pipe for a terminal.
IN_A_NOTEBOOK = "JPY_PARENT_PID"


class SteadyConsole(Console):
    """A console of a sensible width, which falls silent if its stream is closed or full."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not NARROWEST <= self.width <= WIDEST:  # by COLUMNS, or a terminal that says 0
            self.width = min(WIDEST, max(NARROWEST, self.width))

    def on_broken_pipe(self) -> None:
        """Fall silent; rich's own method would exit."""
        self.quiet = True

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, unless the stream fails."""
        with suppress(OSError, ValueError):
            super().print(*objects, **options)


class Progress:
    """Reports stages, phases and the elapsed time on stderr; stdout holds the results only."""

    def __init__(self, stages: int, console: Console | None = None) -> None:
        self.console = console or SteadyConsole(stderr=True, highlight=False)
        self.stages = stages
        self.number = 0
        self.began = time.monotonic()
        self.last, self.said = "", self.began
        self.status: Status | None = None

    def __enter__(self) -> Self:
        """Begin the live line, if there is a terminal."""
        if self.console.is_terminal and self.console.file.isatty() and IN_A_NOTEBOOK not in os.environ:
            self.status = self.console.status("starting")
            self.status.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the live line."""
        if self.status:
            self.status.stop()

    def say(self, text: str) -> None:
        """Print a line that stays, without secrets."""
        self.said = time.monotonic()
        self.console.print(visible(without_secrets(text)), markup=False, soft_wrap=True)

    def stage_started(self, name: str, adds: str) -> None:
        """Report the start of a stage."""
        self.number += 1
        self.say(f"[{self._elapsed()}] {self.number}/{self.stages} {name}: {adds}")

    def phase_entered(self, title: str, phase: str, detail: str = "") -> None:
        """Report a phase of a stage, and how far it is; plain lines tell the latter after `SILENCE` only."""
        line = f"{title}: {phase}"
        if self.status:
            self.status.update(escape(visible(f"[{self._elapsed()}] {line} {detail}")))
        elif line != self.last:
            self.say(f"[{self._elapsed()}]   {line}")
        elif detail and time.monotonic() - self.said >= SILENCE:
            self.say(f"[{self._elapsed()}]   {line}: {detail}")
        self.last = line

    def stage_finished(self, run: RunRecord, stage: StageRecord) -> None:
        """Report the outcome of a stage."""
        self.say(f"[{self._elapsed()}]   {outcome_line(run, stage)}")

    def _elapsed(self) -> str:
        """Return minutes and seconds since the run began, as 1:05."""
        return elapsed(time.monotonic() - self.began)


def print_error(text: str) -> None:
    """Print an error on stderr, in one line and without secrets."""
    tell(f"error: {clean(without_secrets(text))}")


def without_secrets(text: str) -> str:
    """Return text for the terminal without the values of variables that hold secrets, or that were typed."""
    return masked(text, values_to_hide(referred_to(sys.argv)))
