"""Processes of the project without their imports: one server imports torch once, and forks for every process.

`ForkedPopen` takes the place of `subprocess.Popen` for `python -m pipeline…`, and within `torch_alone` for any program
of Python, of a process that has imported torch alone; every other one is started as usual. A forked process has a pid,
a session, pipes, signals and an exit status of its own, and starts in a fraction of a second instead of in seconds.
Tests of what only a fresh interpreter shows carry the marker `fresh_process`.
"""

import contextlib
import fcntl
import gc
import importlib
import inspect
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import forked_program

ADDRESS = "UNET_LADDER_FORK_SERVER"  # the environment variable that holds the server's address
ROOT = Path(__file__).resolve().parents[1]
TORCH_ALONE = ".torch"  # ends the address of the server that has imported nothing else
PRELOADED = (
    "matplotlib.backends.backend_svg",  # of every report
    "torch._dynamo",  # which torch imports at a net's first convolution, in seconds
    "pipeline.inputs.datasets",
    "models.unet",
    "pipeline.cli.app",
    "pipeline.report.write",
    "pipeline.stages.eager",
    "pipeline.worker.net_file",
    "pipeline.worker.run_stage",
    "hydra._internal.core_plugins.basic_launcher",
    "hydra._internal.core_plugins.basic_sweeper",
    "PIL.PngImagePlugin",  # which Pillow imports at its first picture
    "PIL.JpegImagePlugin",
)
MOST_REQUEST_BYTES = 2**20
STANDARD_STREAMS = 3
PIPE_ENDS = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
REAL_POPEN = subprocess.Popen
servers: list[subprocess.Popen[bytes]] = []  # none or one; the end of its stdin ends it


def is_forkable(command: object) -> bool:
    """Whether this interpreter is to run a module of the project, or within `torch_alone` any program."""
    if not isinstance(command, list) or len(command) < 2 or command[0] != sys.executable:
        return False
    words = without_safe_path(command[1:])
    if words[0] != "-m":
        return ForkedPopen.any_program
    # The compiler's processes compile, for which the server, where no GPU is, has Triton's interpreter in mind.
    return words[1].split(".")[0] == "pipeline" and not words[1].startswith("pipeline.compiler.")


def without_safe_path(words: list[object]) -> list[str]:
    """Return the words of a command without -P, which keeps the current folder out of Python's path."""
    return [str(word) for word in (words[1:] if words[0] == "-P" else words)]


class ForkedPopen(subprocess.Popen[Any]):
    """A process that the server forks, and that this object watches through the server's answers."""

    any_program = False  # within `torch_alone`
    _answers: socket.socket | None = None

    def _execute_child(self, *given: Any, **named: Any) -> None:
        """Have the server fork; the arguments are those of `subprocess.Popen._execute_child`."""
        bound = inspect.signature(super()._execute_child).bind(*given, **named)  # type: ignore[misc]
        asked = bound.arguments
        if not is_forkable(asked["args"]):
            super()._execute_child(*given, **named)  # type: ignore[misc]
            return
        ends = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        streams = [standard if end == -1 else end for standard, end in enumerate(ends)]
        passed = [int(number) for number in asked["pass_fds"]]
        if ADDRESS not in os.environ:
            start()
        request = {
            "words": without_safe_path(asked["args"][1:]),
            "folder": str(asked["cwd"] or Path.cwd()),
            "environment": {**(asked["env"] or os.environ), ADDRESS: os.environ[ADDRESS]},
            "numbers": [*range(STANDARD_STREAMS), *passed],
            "new_session": bool(asked["start_new_session"]),
        }
        try:
            self._answers = ask(request, [*streams, *passed])
            self.pid = int(self._line())
            self._child_created = True
        finally:
            self._close_pipe_fds(*(asked[name] for name in PIPE_ENDS))  # type: ignore[attr-defined]

    def _line(self) -> str:
        """The server's next line, waited for; empty where it is gone."""
        text = b""
        while not text.endswith(b"\n") and (piece := self._answers.recv(1)):
            text += piece
        return text.decode().strip()

    def _internal_poll(self, *given: Any, **named: Any) -> int | None:
        """The exit status, where there is one."""
        if self._answers is None:
            return super()._internal_poll(*given, **named)  # type: ignore[misc]
        if self.returncode is None and select.select([self._answers], [], [], 0)[0]:
            self.returncode = int(self._line() or -signal.SIGKILL)
            self._answers.close()
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        """Wait for the exit status; raise TimeoutExpired if it takes longer."""
        if self._answers is None:
            return super()._wait(timeout)  # type: ignore[misc]
        if self.returncode is None and not select.select([self._answers], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self._internal_poll()
        return int(self.returncode)


def ask(request: dict[str, Any], descriptors: list[int]) -> socket.socket:
    """Send a request; the pid and then the exit status come as lines over the socket that is returned."""
    deadline = time.monotonic() + 120.0
    address = os.environ[ADDRESS] + ("" if request["words"][0] == "-m" else TORCH_ALONE)
    while not Path(address).exists():
        assert not servers or servers[0].poll() is None, "the fork server ended"
        assert time.monotonic() < deadline, "the fork server doesn't listen"
        time.sleep(0.05)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(address)
    socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], descriptors)
    return connection


def start() -> None:
    """Start the server of this process and all that it starts, which ends with it; don't wait until it listens."""
    address = Path(tempfile.mkdtemp(prefix="fork-server-")) / "socket"
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    server = REAL_POPEN(
        [sys.executable, "-m", "tests.fork_server", str(address)],
        cwd=ROOT,
        env={**os.environ, **threads},
        stdin=subprocess.PIPE,
    )
    os.environ[ADDRESS] = str(address)
    servers.append(server)


def stop() -> None:
    """End the server that this process started, where it did."""
    while servers:
        server = servers.pop()
        server.communicate()  # closes its stdin and waits
        shutil.rmtree(Path(os.environ.pop(ADDRESS)).parent)


def interpret_without_gpu() -> None:
    """Where no GPU is, Triton's kernels run in its interpreter; it must know so before anything imports it."""
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"


def serve(address: str) -> None:
    """Fork for every request until stdin is closed."""
    gc.disable()  # until all is imported
    interpret_without_gpu()
    if os.fork() == 0:
        listen(f"{address}{TORCH_ALONE}")
        return
    for name in PRELOADED:
        importlib.import_module(name)
    listen(address)


def listen(address: str) -> None:
    """Fork for every request to the address."""
    gc.collect()
    gc.freeze()  # what the collector doesn't walk, forks share
    gc.enable()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"{address}.part")
        listener.listen()
        Path(f"{address}.part").rename(address)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the watchers of its children end unwatched
        while True:
            watched: list[socket.socket | int] = [listener, 0]
            ready, _, _ = select.select(watched, [], [])
            if 0 in ready:
                return
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                watch(connection)
            connection.close()


def watch(connection: socket.socket) -> None:
    """In a child of the server: fork the process itself, and tell its pid and its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, descriptors, _, _ = socket.recv_fds(connection, MOST_REQUEST_BYTES, 2 * STANDARD_STREAMS)
    while not text.endswith(b"\n"):
        text += connection.recv(MOST_REQUEST_BYTES)
    request = json.loads(text)
    began, begins = os.pipe()
    child = os.fork()
    if child == 0:
        connection.close()
        if request["new_session"]:
            os.setsid()
        os.close(begins)  # from here on its group can be killed
        os._exit(become(request, descriptors))
    for descriptor in (0, 1, 2, begins, *descriptors):
        os.close(descriptor)
    os.read(began, 1)
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become(request: dict[str, Any], descriptors: list[int]) -> int:
    """Take the place of a fresh process, run its module, and return its exit status."""
    highest = max(request["numbers"])
    for descriptor, number in [
        (fcntl.fcntl(received, fcntl.F_DUPFD, highest + 1), number)
        for received, number in zip(descriptors, request["numbers"], strict=True)
    ]:
        os.dup2(descriptor, number)
        os.close(descriptor)
    for received in set(descriptors) - set(request["numbers"]):
        os.close(received)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout = os.fdopen(0, "r", closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)  # by lines, as in every interpreter
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    install()
    try:
        return forked_program.run(request["words"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def install() -> None:
    """Have this process, too, start modules of the project by the server."""
    subprocess.Popen = ForkedPopen  # type: ignore[misc]


@contextlib.contextmanager
def torch_alone() -> Iterator[None]:
    """Within, a program of Python is a fork of a process that has imported torch: it spares itself that, no more."""
    ForkedPopen.any_program = True
    try:
        yield
    finally:
        ForkedPopen.any_program = False


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Within, every process is an interpreter of its own, and so is what it starts."""
    address = os.environ.pop(ADDRESS, None)
    subprocess.Popen = REAL_POPEN  # type: ignore[misc]
    try:
        yield
    finally:
        install()
        if address:
            os.environ[ADDRESS] = address


if __name__ == "__main__":
    serve(sys.argv[1])
