"""Starts a worker's process, opens its log, and reads how it ended."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from pipeline.orchestrate.forking import ForkedProcess, ForkServer


def started(server: ForkServer | None = None) -> tuple[subprocess.Popen[bytes] | ForkedProcess, int]:
    """A worker's process, and the descriptor that its messages come from; an interpreter of its own without a server.

    Raises:
        OSError: the system starts no further process.
    """
    if server and (forked := server.worker()):
        return forked
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "pipeline.worker", str(write_end)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[write_end],
            start_new_session=True,
        )
    except OSError:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    return process, read_end


def opened(path: Path) -> IO[bytes] | None:
    """The log, open for writing; None where the disk takes none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb")
    except OSError:
        return None


def written(log: IO[bytes] | None, text: bytes) -> IO[bytes] | None:
    """The log with more text in it; None from where the disk takes no more."""
    try:
        if log:
            log.write(text)
            log.flush()
    except OSError:
        return None
    return log


def peak_of_children() -> int:
    """The largest peak, in bytes of resident memory, of all processes that this one has waited for."""
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB


def name_of(number: int) -> str:
    """A signal's name; real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
