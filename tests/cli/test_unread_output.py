"""A program whose output nobody reads waits for its reader, until it is told to end."""

import signal
import subprocess
import sys
import time

from pipeline.command_line import INTERRUPTED
from tests import terminal_signals
from tests.cli.conftest import ROOT

UNREAD = """
import sys
from pipeline.command_line import guarded
def program():
    print("begins", file=sys.stderr, flush=True)
    print("x" * 10**6, flush=True)
sys.exit(guarded(program))
"""


def test_an_interruption_ends_a_program_whose_output_nobody_reads() -> None:
    """A pager that was left alone: what waits for it is dropped, as nothing else could end the wait."""
    with subprocess.Popen(
        [sys.executable, "-c", UNREAD],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        text=True,
        preexec_fn=terminal_signals.heed,  # noqa: PLW1509 - this process has no other threads
    ) as held:
        assert held.stderr is not None
        assert held.stderr.readline() == "begins\n"
        time.sleep(0.2)
        assert held.poll() is None
        held.send_signal(signal.SIGINT)
        assert held.wait(timeout=10) == INTERRUPTED
        assert "error: interrupted" in held.stderr.read()
