"""An end to work of the main thread that may take too long, such as a compiler's search."""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

Made = TypeVar("Made")

AGAIN = 1.0  # seconds until the alarm rings again, where something took it for an error of its own


class TooLongError(RuntimeError):
    """Work that was given up; one line."""


class _Alarm(BaseException):
    """Ends the work: compilers catch every Exception in many places, and go on."""


def within(seconds: float | None, work: Callable[[], Made]) -> Made:
    """What `work` gives; it is given up at its next step of Python after so many seconds, where they aren't None.

    In another thread than the main one there is no limit, as no signal reaches it. Somebody else's alarm waits, and
    rings late if it was due. It is no context manager: Python 3.13 leaves the jumps back of a loop that stands in a
    `with` outside of it, so that an alarm there would pass by.

    Raises:
        TooLongError: the time was over.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        return work()
    over = False

    def ring(_: int, frame: FrameType | None) -> None:
        """End the work, unless it has just ended by itself and this file's own code runs, or what that calls."""
        if not over and (frame is None or frame.f_code.co_filename != __file__):
            raise _Alarm

    began, before = time.monotonic(), signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        return work()
    except _Alarm:
        raise TooLongError(f"given up after {seconds:g} s") from None
    finally:
        over = True
        others = max(left - (time.monotonic() - began), 1e-6) if left else 0.0
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, others, interval)
