"""Progress is a live line on a terminal alone: elsewhere each of its redrawings would stay."""

import io

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
