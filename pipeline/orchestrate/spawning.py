"""Starts a worker's process, opens its log, and reads how it ended."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from conf import child
from pipeline.devices.host import oom_kills
from pipeline.orchestrate.forking import ForkedProcess, ForkServer
from pipeline.records.masking import MaskedBytes, values_to_hide
from pipeline.records.run_record import FailureKind

LOG_LIMIT_BYTES = 2_000_000  # a stage that prints without end fills no disk


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
            **child("pipeline.worker", str(write_end)),
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


def keep_log(output: IO[bytes], path: Path) -> None:
    """Keep what a worker prints; where the disk takes no more, read on, so that the worker never waits for it."""
    left, log, hiding = LOG_LIMIT_BYTES, opened(path), MaskedBytes(values_to_hide())
    while chunk := os.read(output.fileno(), 65536):
        log = written(log, hiding.add(chunk[: max(left, 0)]))
        left -= len(chunk)
    if log := written(log, hiding.rest()):
        log.close()


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


def cause_of(code: int, peak_before: int, kills_before: int) -> tuple[FailureKind, str]:
    """What ended a worker that left with this code, and how that reads.

    Args:
        code: negative where a signal ended it.
        peak_before: `peak_of_children` before its end was waited for.
        kills_before: `oom_kills` before it was started.
    """
    if code == -signal.SIGKILL:
        peak = peak_of_children()
        said = f"; its peak was {peak / 2**30:.3g} GiB" if peak > peak_before else ""
        if oom_kills() > kills_before:
            return "out of memory", f"killed by the system, which had run out of memory{said}"
        return "killed", f"killed by SIGKILL (out of memory?){said}"
    return "died", f"killed by {name_of(-code)}" if code < 0 else f"exit code {code}"


def name_of(number: int) -> str:
    """A signal's name; real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
