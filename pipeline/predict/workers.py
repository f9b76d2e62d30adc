"""Processes that read and write files for the calling process, each behind a thread that waits for it.

Threads of one process hold Python's lock by turns: the classic network in fp8 made 411 masks a second beside 16 threads
that decode and encode, and 1,050 beside 16 processes (H100, 16 cores). Arrays travel through shared memory.
"""

import mmap
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate, pairwise
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ParamSpec, Self, TypeVar

import numpy as np

from pipeline.errors import first_line

P = ParamSpec("P")
T = TypeVar("T")
Empty = Callable[[int], np.ndarray]  # gives memory of a size in bytes
KEEP_MEMORY = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(2**28))  # glibc's: pages stay


def plain(size: int) -> np.ndarray:
    """Return memory of this process."""
    return np.empty(size, np.uint8)


class WorkerDiedError(Exception):
    """A process ended in the middle of its work; the text says how."""


class Workers:
    """A pool of processes, or of threads alone.

    Args:
        number: of processes.
        in_threads: call functions in threads of this process instead.
        empty: makes the memory of arrays that come back.
    """

    def __init__(self, number: int, *, in_threads: bool, empty: Empty = plain) -> None:
        self.empty = empty
        self.threads = ThreadPoolExecutor(number)
        self.in_threads = in_threads
        self.own = threading.local()
        self.started: list[tuple[subprocess.Popen[bytes], Channel]] = []

    def submit(self, function: Callable[P, T], *args: P.args, **named: P.kwargs) -> Future[T]:
        """Call a function of a module in a process; its arguments and its result are pickled.

        The future raises what the function raises, or `WorkerDiedError`.
        """
        return self.threads.submit(self._call, function, args, named)

    def _call(self, function: Callable[..., T], args: tuple[Any, ...], named: dict[str, Any]) -> T:
        """Call a function in the process of this thread, which is started if there is none."""
        if self.in_threads:
            return function(*args, **named)
        if not hasattr(self.own, "started"):
            self.own.started = start(self.empty)
            self.started.append(self.own.started)
        process, channel = self.own.started
        try:
            channel.send((function, args, named))
            right, value = channel.receive()
        except (EOFError, BrokenPipeError):
            del self.own.started
            code = process.wait()
            ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}"
            raise WorkerDiedError(f"the process that worked on it ended with {ended}") from None
        if not right:
            raise value
        answer: T = value
        return answer

    def __enter__(self) -> Self:
        """Return the pool."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Wait for calls under way, drop the others, and end the processes."""
        self.threads.shutdown(cancel_futures=True)
        for process, channel in self.started:
            process.communicate()
            os.close(channel.memory)


class Channel:
    """Two pipes for values, and memory that both sides map for the arrays within them.

    Args:
        given: the pipe that is read.
        answers: the pipe that is written.
        memory: descriptor of the shared memory.
        empty: makes the memory of arrays that are read.
    """

    def __init__(self, given: IO[bytes], answers: IO[bytes], memory: int, empty: Empty = plain) -> None:
        self.empty = empty
        self.given = given
        self.answers = answers
        self.memory = memory
        self.mapped = np.zeros(0, np.uint8)

    def send(self, value: object) -> None:
        """Write a value.

        Raises:
            BrokenPipeError: the other side has ended.
        """
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        parts = [buffer.raw() for buffer in buffers]
        self.map(sum(map(len, parts)))
        at = 0
        for part in parts:
            self.mapped[at : at + len(part)] = np.frombuffer(part, np.uint8)
            at += len(part)
        pickle.dump((head, [len(part) for part in parts]), self.answers)
        self.answers.flush()

    def receive(self) -> Any:
        """Read a value, whose arrays are copies.

        Raises:
            EOFError: the other side has ended.
        """
        head, sizes = pickle.load(self.given)  # noqa: S301 - of a process of this program
        self.map(sum(sizes))
        ends = [*accumulate(sizes, initial=0)]
        copies = self.empty(sum(sizes))
        copies[:] = self.mapped[: len(copies)]
        return pickle.loads(head, buffers=[copies[first:last] for first, last in pairwise(ends)])  # noqa: S301 - likewise

    def map(self, size: int) -> None:
        """Map at least `size` bytes of the shared memory, and enlarge it if it has fewer."""
        if size > len(self.mapped):
            if os.fstat(self.memory).st_size < size:
                os.ftruncate(self.memory, size)
            self.mapped = np.frombuffer(mmap.mmap(self.memory, size), np.uint8)


def start(empty: Empty) -> tuple[subprocess.Popen[bytes], Channel]:
    """Start a process, which ends when its standard input does."""
    memory = os.memfd_create("arrays")
    path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
    environment = os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", **KEEP_MEMORY}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, str(memory)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, pass_fds=[memory],
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    return process, Channel(process.stdout, process.stdin, memory, empty)


def main() -> None:
    """Call the functions that the standard input names; write each one's result, or what it raised."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    channel = Channel(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[1]))
    sys.stdout = sys.stderr
    while True:
        try:
            function, args, named = channel.receive()
        except EOFError:
            return
        try:
            answer = True, function(*args, **named)
        except Exception as error:  # noqa: BLE001 - raised again by the process that asked
            answer = False, sendable(error)
        channel.send(answer)


def sendable(error: Exception) -> Exception:
    """Return an error that can be pickled: itself, or its first line."""
    try:
        return pickle.loads(pickle.dumps(error))  # type: ignore[no-any-return]  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - any class may fail in its own way
        return RuntimeError(f"{type(error).__name__}: {first_line(error)}")


if __name__ == "__main__":
    main()
