"""Starts workers as copies of one process that has imported the worker's modules: `… fork_server FD MODULE [MODULE …]`.

Importing torch takes most of a short job's start. A copy has the pid, session, pipes, log and end of a process of its
own; it shares with the other copies what was imported, and so the places of libraries in memory and the seed of
Python's hashes, which a fresh interpreter draws anew. Linux alone: a copy becomes the child of the run that asked.
"""

import gc
import importlib
import math
import os
import select
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from pipeline.protocol import die_with_the_parent

STREAMS = 3  # of a worker: stdin, stdout with stderr, and the descriptor of its messages
GPU = "/dev/nvidia"  # how its driver's files begin; a copy of a process that has opened a GPU can't use it
NONE_STARTED = 0  # in place of a pid


def main() -> int:
    """Import the first module, fork once, import the others, fork for every request; a copy is the first's `main`."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    die_with_the_parent()
    if abandoned(connection):  # the parent died before that line, of which Linux doesn't tell
        return 1
    gc.disable()  # it would walk all that is imported again and again: a sixth of torch's import
    names = sys.argv[2:]
    for imported, requests in ((names[:1], 1), (names[1:], math.inf)):
        for name in imported:
            importlib.import_module(name)
        gc.freeze()  # what no copy walks, all share
        if os.fork() == 0:
            os._exit(0)  # numpy's BLAS ends its threads at a fork; whatever thread is left then, a copy would lack
        os.wait()
        if len(list(Path("/proc/self/task").iterdir())) > 1:
            return 1
        if requests == 1 and any(file.startswith(GPU) for file in opened()):  # the copy may be the one that needs it
            return 1
        if streams := serve(connection, requests):
            gc.enable()
            take_over(streams)
            sys.argv = [names[0], str(streams[-1])]
            importlib.import_module(names[0]).main()
            break
    return 0


def abandoned(connection: socket.socket) -> bool:
    """Whether the other end is closed, as a dead parent's is; what it asked for before doesn't matter."""
    closed = select.poll()
    closed.register(connection, 0)  # no event but the one that is told unasked: POLLHUP
    return bool(closed.poll(0))


def opened() -> set[str]:
    """The paths of what this process has open."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists them is closed by now
            found.add(str(descriptor.readlink()))
    return found


def serve(connection: socket.socket, requests: float) -> list[int]:
    """Fork for so many requests, or until the other end is closed; in a copy, the descriptors of its request."""
    served = 0
    while served < requests:
        served += 1
        _, descriptors, _, _ = socket.recv_fds(connection, 1, STREAMS)
        if not descriptors:
            break
        try:
            pid = forked()
        except OSError:  # the system starts no further process
            pid = NONE_STARTED
        if pid is None:
            connection.close()
            return descriptors
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(BrokenPipeError):
            connection.sendall(f"{pid}\n".encode())
    return []


def forked() -> int | None:
    """The pid of a new copy, which leads a session; None in the copy itself, which by then is its adopter's child.

    Raises:
        OSError: the system starts no further process.
    """
    begins, began = os.pipe()
    between = os.fork()
    if between == 0:
        between = os.getpid()
        if fork_or_leave():
            os._exit(0)
        os.setsid()  # from here on its group can be killed
        os.write(began, f"{os.getpid()}".encode())
        os.close(begins)
        os.close(began)
        while os.getppid() == between:
            time.sleep(0.001)
        return None
    os.close(began)
    os.waitpid(between, 0)
    pid = os.read(begins, 20)
    os.close(begins)
    return int(pid or NONE_STARTED)


def fork_or_leave() -> int:
    """As `os.fork`; where the system starts no further process, this one is left at once."""
    try:
        return os.fork()
    except OSError:
        os._exit(1)


def take_over(streams: list[int]) -> None:
    """Make the descriptors this process's stdin, stdout and stderr; the last stays what it is."""
    for descriptor, standard in ((streams[0], 0), (streams[1], 1), (streams[1], 2)):
        os.dup2(descriptor, standard)
    for descriptor in streams[:-1]:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
