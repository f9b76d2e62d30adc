"""Start a worker's process, keep its log, and read how it ended."""

import os
import pickle
import select
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType
from typing import IO

from conf import child, safe_path
from pipeline.records.masking import MaskedBytes, values_to_hide

LOG_LIMIT_BYTES = 2_000_000  # so that a talkative stage can't fill the disk
PRELOAD = "pipeline.worker.preload"


class ForkError(Exception):
    """The fork server starts no worker."""


class ForkedProcess:
    """A worker that the fork server has started, with what `subprocess.Popen` offers for one of this process's."""

    def __init__(self, status: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        """Read the pid from `status`, where the server writes it, and the exit status at the end."""
        self.pid: int = forkserver.read_signed(status)
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """Return the exit status; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the exit status."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            try:
                self.returncode = forkserver.read_signed(self._status)
            except (OSError, EOFError):  # the server ended before it
                self.returncode = -signal.SIGKILL
            os.close(self._status)
        return self.returncode


class _Preloaded:
    """Unpickled, the module `PRELOAD`: this process can't import it, as it imports torch."""

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        return import_module, (PRELOAD,)


def forked() -> tuple[ForkedProcess, int]:
    """Start a worker as a copy of one process that has imported torch, in a tenth of the time.

    A copy shares with the others where libraries lie in memory, and the seed of Python's hashes.
    """
    (stdin, to_worker), (from_worker, output), (messages, report) = [os.pipe() for _ in range(3)]
    try:
        forkserver.set_forkserver_preload([PRELOAD])
        status, request = forkserver.connect_to_new_process([stdin, output, report])
        with os.fdopen(request, "wb") as pipe:
            pickle.dump({"sys_path": safe_path()}, pipe)  # of what multiprocessing prepares
            pickle.dump(_Preloaded(), pipe)
        process = ForkedProcess(status, os.fdopen(to_worker, "wb"), os.fdopen(from_worker, "rb"))
    except (OSError, EOFError) as error:
        for end in (to_worker, from_worker, messages):
            os.close(end)
        raise ForkError(f"the fork server can't start a process ({error})") from error
    finally:
        for end in (stdin, output, report):
            os.close(end)
    return process, messages


def started() -> tuple[subprocess.Popen[bytes], int]:
    """Start a worker in an interpreter of its own; return it and the descriptor that its messages come from."""
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
    """Write a worker's output to the log; when the disk is full, read on so that the worker never waits."""
    left, hiding = LOG_LIMIT_BYTES, MaskedBytes(values_to_hide())
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb", buffering=0) as log:
            while chunk := os.read(output.fileno(), 65536):
                log.write(hiding.add(chunk[: max(left, 0)]))
                left -= len(chunk)
            log.write(hiding.rest())
    while os.read(output.fileno(), 65536):
        pass


def name_of(number: int) -> str:
    """Return a signal's name; real-time signals have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
