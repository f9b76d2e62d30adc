"""Workers: processes, or threads of this one, each with a line for messages and shared memory for arrays.

Threads hold Python's lock by turns: beside 16 of them a network made 411 masks a second, and 1,050 beside 16 processes.
"""

import mmap
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import first_line

KEEP_MEMORY = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(2**28))  # glibc's: pages stay
MEMORIES = 2  # of a worker: one is filled while the GPU answers the other
STOP = None  # the message that ends a worker's work
Pin = Callable[[np.ndarray], object]  # makes memory such that a GPU copies from it and to it without the host's help


class Memory:
    """Memory that both sides of a line map; its size grows as needed."""

    def __init__(self, descriptor: int, pin: Pin = len) -> None:
        self.descriptor = descriptor
        self.pin = pin
        self.mapped: list[np.ndarray] = []  # earlier maps stay: copies to them may be under way

    def room(self, size: int) -> np.ndarray:
        """Return at least `size` bytes of it."""
        if not self.mapped or size > len(self.mapped[-1]):
            there = os.fstat(self.descriptor).st_size
            if there < size:
                there = max(size, 2 * there)
                os.ftruncate(self.descriptor, there)
            self.mapped.append(np.frombuffer(mmap.mmap(self.descriptor, there), np.uint8))
            self.pin(self.mapped[-1])
        return self.mapped[-1]

    def array(self, at: int, kind: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """Return an array that begins at byte `at`, in place."""
        size = int(np.prod(shape)) * kind.itemsize
        return self.room(at + size)[at : at + size].view(kind).reshape(shape)


@dataclass(frozen=True)
class Failed:
    """A worker's message: its work raised an error."""

    error: BaseException


@dataclass(frozen=True)
class Ended:
    """Stands for the message of a worker that ended; `how` it did."""

    how: str


@dataclass(eq=False)
class Worker:
    """A worker as its caller sees it."""

    line: Connection  # for messages
    memories: list[Memory]  # for arrays
    process: subprocess.Popen[bytes] | None  # that it is; None: it is a thread
    thread: threading.Thread | None = None

    def send(self, message: object) -> None:
        """Send a message; one that has ended is told by `Workers.messages`."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self.line.send(message)

    def close(self) -> None:
        """Close the line, which ends the worker."""
        self.line.close()
        for memory in self.memories if self.process else ():
            os.close(memory.descriptor)


def beside_a_gpu(asked: int | None, cases: int) -> int:
    """Return how many processes serve a GPU: those that were asked for, or one a core; no more than cases."""
    return min(asked or len(os.sched_getaffinity(0)), cases)


@dataclass
class Workers:
    """Workers that are started when work begins."""

    in_threads: bool  # they are threads instead of processes
    pin: Pin = len  # as in `Memory`; may be set once the GPU is known
    all: list[Worker] = field(default_factory=list)  # that run

    def __post_init__(self) -> None:
        """Make the file that one worker at a time may lock."""
        self.alone = os.memfd_create("alone")

    def begin(self, work: Any, number: int) -> list[Worker]:
        """Have `number` workers do this work; return them."""
        while len(self.all) < number:
            self.start()
        for worker in self.all[:number]:
            worker.send(work)
        return self.all[:number]

    def start(self) -> Worker:
        """Start a worker."""
        ours, its = Pipe()
        files = [os.memfd_create("arrays") for _ in range(MEMORIES)]
        memories = [Memory(file, lambda memory: self.pin(memory)) for file in files]  # noqa: PLW0108 - it is set later
        if self.in_threads:
            worker = Worker(ours, memories, None)
            arguments = its, [*map(Memory, files)], self.alone
            worker.thread = threading.Thread(target=serve, args=arguments, daemon=True)
            worker.thread.start()
        else:
            passed = [its.fileno(), self.alone, *files]
            path = os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)
            environment = os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", **KEEP_MEMORY}
            program = f"from {__name__} import main; main()"  # by its name, under which its messages are pickled
            command = [sys.executable, "-P", "-c", program, *map(str, passed)]
            # The process inherits this: Ctrl-C reaches all processes, and the first one ends the others.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                worker = Worker(ours, memories, subprocess.Popen(command, env=environment, pass_fds=passed, stdout=2))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            its.close()
        self.all.append(worker)
        return worker

    def ready(self, seconds: float | None) -> list[Worker]:
        """Return the workers that have sent a message; wait for the first."""
        by_line: dict[Any, Worker] = {worker.line: worker for worker in self.all}
        return [by_line[line] for line in wait([*by_line], seconds)]

    def messages(self, ready: list[Worker]) -> Iterator[tuple[Worker, Any]]:
        """Yield a message of each of these workers."""
        for worker in ready:
            try:
                yield worker, worker.line.recv()
            except (EOFError, ConnectionResetError):
                self.all.remove(worker)
                code = worker.process.wait() if worker.process else 1
                yield worker, Ended(f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}")
                worker.close()

    def close(self) -> None:
        """End all workers."""
        for worker in self.all:
            worker.close()
        for worker in self.all:
            if worker.thread:
                worker.thread.join()
            if worker.process:
                worker.process.wait()
        os.close(self.alone)


def serve(line: Connection, memories: list[Memory], alone: int) -> None:
    """Do the work that comes on a line, until the line is closed."""
    with line, suppress(EOFError, ConnectionError):
        while True:
            work = line.recv()  # such as `CaseWork`
            try:
                work.run(line, memories, alone)
            except (EOFError, ConnectionError):
                raise
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that asked
                line.send(Failed(sendable(error)))
                while line.recv() is not STOP:
                    pass
                line.send(STOP)


def sendable(error: BaseException) -> BaseException:
    """Return an error that can be pickled: itself, or its first line."""
    try:
        return pickle.loads(pickle.dumps(error))  # type: ignore[no-any-return]  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - any class may fail in its own way
        return RuntimeError(f"{type(error).__name__}: {first_line(error)}")


def main() -> None:
    """Serve the line and the memories whose descriptors are given."""
    import pipeline.predict.case_work  # noqa: F401 - of their work, while the caller still loads the network

    line, alone, *files = map(int, sys.argv[1:])
    serve(Connection(line), [*map(Memory, files)], alone)
