"""Ctrl-C, TERM and HUP: the first ends the run after the current call, the second ends it at once.

During a run, the first signal takes effect only where the parent waits for a worker, so that nothing is
half done: no record half written, no worker half stopped. Outside a run it ends the program where it is.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXIT_CODE = 130


class _State:
    """The state of this process: signalled, in a run, or waiting for a worker."""

    asked = False
    in_run = False
    waits = False
    at_once: Callable[[], None] | None = None


@contextmanager
def heeded(at_once: Callable[[], None]) -> Iterator[None]:
    """Handle the signals inside the block; at a second one call `at_once` and end the process."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    _State.asked, _State.at_once = False, at_once
    for number in SIGNALS:
        if before[number] is not signal.SIG_IGN or number == signal.SIGTERM:  # nohup
            signal.signal(number, _interrupted)
    try:
        yield
    finally:
        _State.asked, _State.at_once = False, None
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


@contextmanager
def run() -> Iterator[None]:
    """Delay the first signal, within a run, until nothing is half done."""
    outer, _State.in_run = _State.in_run, True
    try:
        yield
    finally:
        _State.in_run = outer


@contextmanager
def waiting() -> Iterator[None]:
    """Let the first signal take effect inside the block."""
    _State.waits = True
    try:
        if _State.asked:
            raise KeyboardInterrupt
        yield
    finally:
        _State.waits = False


def asked() -> bool:
    """Return whether a signal has come."""
    return _State.asked


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    if _State.asked:
        if _State.at_once:
            _State.at_once()
        os._exit(EXIT_CODE)
    _State.asked = True
    if _State.waits or not _State.in_run:
        raise KeyboardInterrupt
