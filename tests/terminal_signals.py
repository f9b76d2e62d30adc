"""Signals as at a terminal: what a shell starts in the background, or `nohup`, ignores some, and so would the tests."""

import contextlib
import signal
from collections.abc import Iterator

NUMBERS = (signal.SIGINT, signal.SIGHUP)


def heed() -> None:
    """Have this process heed them, as what a terminal starts does; before an exec, whatever comes after it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextlib.contextmanager
def heeded() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    heed()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
