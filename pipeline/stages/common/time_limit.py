"""An end to work of the main thread that may take too long, such as a compiler's search."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

AGAIN = 1.0  # seconds until the alarm rings again, where something took it for an error of its own


class TooLongError(RuntimeError):
    """Work that was given up; one line."""


class _Alarm(BaseException):
    """Ends the work: compilers catch every Exception in many places, and go on."""


@contextmanager
def at_most(seconds: float | None) -> Iterator[None]:
    """Give up what runs inside after so many seconds, at the next step of Python; None is no limit.

    In another thread than the main one there is none either, as no signal reaches it.

    Raises:
        TooLongError: the time was over.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    working = True

    def ring(*_: object) -> None:
        if working:
            raise _Alarm

    began, before = time.monotonic(), signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
    except _Alarm:
        raise TooLongError(f"given up after {seconds:g} s") from None
    finally:
        working = False
        others = max(left - (time.monotonic() - began), 1e-6) if left else 0.0  # somebody else's alarm, rung late
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, others, interval)
