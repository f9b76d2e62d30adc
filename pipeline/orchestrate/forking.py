"""The parent's end of the fork server, and of a worker that came from it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from conf import child

if TYPE_CHECKING:  # this module is imported before all that takes long
    from pipeline.records.request import RunConfig

# What a worker imports before it builds its stage. The first module's `main` is the worker; the server's first copy,
# which looks at the net or computes the reference, has no more than that module.
MODULES = (
    "pipeline.worker.__main__",
    "pipeline.worker.run_stage",
    "pipeline.worker.net_file",
    "torch._dynamo",
    "pipeline.worker.preloaded",
)
PATIENCE_SECONDS = 300.0  # for the server's imports
POLL_SECONDS = 0.01
LOAD = Path("/proc/loadavg")
LOOKS, APART_SECONDS = 3, 0.001  # at who computes now: a process that wakes for an instant keeps no processor busy
OTHERWISE = ("-", "hydra/", "hydra.job")  # how words begin with which this process may not run anything itself


class ForkedProcess:
    """What `subprocess.Popen` is to a process that this one started, for one that the fork server made its child.

    Attributes:
        pid: its own, and its session's.
        stdin, stdout: this process's ends of its pipes.
        returncode: as of `subprocess.Popen`; None while it runs.
    """

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, negative for a signal's number; None while it runs."""
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # whoever killed all that was left has taken note of its end
                self.returncode = -signal.SIGKILL
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        """The exit status, waited for.

        Raises:
            TimeoutExpired: it runs on after so many seconds.
        """
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(POLL_SECONDS)
        return code


class ForkServer:
    """A process that has imported what workers need, and forks each of them.

    Expects `offspring.adopt` to have been called: the workers become this process's children.

    Attributes:
        failed: why it starts no worker; empty as long as it does.
    """

    def __init__(self, modules: tuple[str, ...] = MODULES) -> None:
        self.failed = ""
        self._line, theirs = socket.socketpair()
        self._line.settimeout(PATIENCE_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                **child("pipeline.worker.fork_server", str(theirs.fileno()), *modules),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the run, which then ends its workers
            )

    def worker(self) -> tuple[ForkedProcess, int] | None:
        """A new worker, and the descriptor that its messages come from; None, and why in `failed`, where there is none.

        Raises:
            OSError: the system has no further pipe.
        """
        pairs = [os.pipe() for _ in range(3)]
        (stdin, to_worker), (from_worker, stdout), (messages, report) = pairs
        pid = self._ask([stdin, stdout, report])
        for end in (stdin, stdout, report):
            os.close(end)
        if pid is None:
            for end in (to_worker, from_worker, messages):
                os.close(end)
            return None
        return ForkedProcess(pid, os.fdopen(to_worker, "wb"), os.fdopen(from_worker, "rb")), messages

    def _ask(self, ends: list[int]) -> int | None:
        """The pid of a worker that has these ends of its pipes, and is a child of this process."""
        self._process.send_signal(signal.SIGCONT)  # a stage may have stopped it
        try:
            socket.send_fds(self._line, [b"w"], ends)
            pid = int(self._line.recv(20) or b"0")
        except OSError:  # it ended, or says nothing for so long
            pid = 0
        if not pid:
            self.failed = "the fork server could start no process"
            return None
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            self.failed = "what the fork server starts is no child of the run"
            return None
        return pid

    @property
    def process_id(self) -> int:
        """Of the server's process, whose conditions its workers have, too."""
        return self._process.pid

    def stop(self) -> None:
        """End the server; the workers that it started live on."""
        self._line.close()
        self._process.kill()
        self._process.wait()


class _Ahead:
    """The server that was started before anybody knew whether the run wants one, and in which surroundings."""

    server: ForkServer | None = None
    surroundings: tuple[str, dict[str, str]] = ("", {})


def start_ahead(words: Sequence[str]) -> None:
    """Start the server that the run's first worker will come from, if no other: its imports take seconds.

    Beside them, on another processor, where one is free, this process reads the request.

    Args:
        words: what the user typed after the program's name.
    """
    unclear = any(word.lstrip("+").startswith(OTHERWISE) and word not in ("-m", "--multirun") for word in words)
    if unclear or _Ahead.server or sys.platform != "linux":
        return
    if processor_is_free():  # else it only keeps this process from reading the request
        _Ahead.surroundings = surroundings()
        _Ahead.server = ForkServer()


def processor_is_free(load: Path = LOAD) -> bool:
    """Whether a processor beside this process's is idle now.

    By who computes at this moment: the average of a minute counts one who tries again and again as his own neighbour.

    Args:
        load: as proc(5) has it; its fourth figure counts the processes that compute, this one among them. Where it says
            none, as some sandboxes do, nobody has counted.
    """
    computing = []
    for look in range(LOOKS):
        time.sleep(APART_SECONDS if look else 0)
        try:
            computing.append(int(load.read_text().split()[3].split("/")[0]))
        except (OSError, ValueError, IndexError):
            return False
    return 0 < min(computing) < len(os.sched_getaffinity(0))


def surroundings() -> tuple[str, dict[str, str]]:
    """What a process passes on to those that it starts; what Hydra sets for itself, no worker reads."""
    return str(Path.cwd()), {name: value for name, value in os.environ.items() if not name.startswith("HYDRA_")}


def stop_ahead() -> None:
    """End a server that was started ahead and that no run has taken."""
    if _Ahead.server:
        _Ahead.server.stop()
    _Ahead.server = None


def taken_ahead() -> ForkServer | None:
    """The server started ahead, which then belongs to the caller; None where its surroundings aren't a worker's."""
    if _Ahead.surroundings != surroundings():
        stop_ahead()
    ahead, _Ahead.server = _Ahead.server, None
    return ahead


def forks(config: "RunConfig") -> bool:
    """Whether a run's workers are copies of one process.

    On a GPU they never are: a copy of a process that has opened one can't use it.
    """
    return config.plan.fork_workers and config.device == "cpu" and sys.platform == "linux"


def fork_server(config: "RunConfig") -> ForkServer | None:
    """The fork server of a run that wants one; None where workers are interpreters of their own."""
    return (taken_ahead() or ForkServer()) if forks(config) else None
