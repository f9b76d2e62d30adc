"""The program within the test's own process, so that a request that no worker sees costs no start of Python."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from pipeline.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
Ask = Callable[..., CompletedProcess[str]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Ask]:
    """Runs the program with arguments, from the project's root; workers are processes of their own, as ever."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "")  # which the program sets, and which the test's end puts back

    def run(*arguments: str) -> CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["pipeline", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        stdout, stderr = capsys.readouterr()
        return CompletedProcess(list(arguments), int(ended.value.code or 0), stdout, stderr)

    yield run
    signal.signal(signal.SIGTERM, before)
