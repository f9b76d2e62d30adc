"""Progress is a live line on a terminal alone: elsewhere each of its redrawings would stay."""

import io
import time

import pytest

from pipeline.cli.progress import IN_A_NOTEBOOK, Progress, SteadyConsole


class Stream(io.StringIO):
    """Where a program writes."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(
    ("terminal", "notebook", "live"),
    [
        (True, False, True),
        (False, False, False),  # a pipe of `pipeline.measure`, or of a CI that asks for colours
        (True, True, False),  # `!python -m pipeline` in a cell
    ],
)
def test_a_line_is_live_where_it_can_be_redrawn(
    terminal: bool, notebook: bool, live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-color")
    monkeypatch.delenv(IN_A_NOTEBOOK, raising=False)
    if notebook:
        monkeypatch.setenv(IN_A_NOTEBOOK, "1")
    stream = Stream(terminal)
    with Progress(1, SteadyConsole(file=stream)) as progress:
        progress.phase_entered("half", "build")
        assert (progress.status is not None) == live
    assert ("half: build\n" in stream.getvalue()) == (not live)
    assert ("\x1b[2K" in stream.getvalue()) == live


def test_a_log_is_told_how_far_a_long_phase_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of every step: after half a minute without a line."""
    stream, now = Stream(terminal=False), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Progress(1, SteadyConsole(file=stream, width=120)) as progress:
        progress.phase_entered("fused", "build")
        for second in range(1, 71):
            now[0] = float(second)
            progress.phase_entered("fused", "build", f"tiles of layer {second}")
    assert [line.strip() for line in stream.getvalue().splitlines()] == [
        "[0:00]   fused: build",
        "[0:30]   fused: build: tiles of layer 30",
        "[1:00]   fused: build: tiles of layer 60",
    ]
