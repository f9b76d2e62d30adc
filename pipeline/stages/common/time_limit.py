"""An end to work of the main thread that may take too long, such as a compiler's search."""

import signal
import threading
import time
from types import FrameType, TracebackType

AGAIN = 1.0  # seconds until the alarm rings again, where something took it for an error of its own


class TooLongError(RuntimeError):
    """Work that was given up; one line."""


class _Alarm(BaseException):
    """Ends the work: compilers catch every Exception in many places, and go on."""


class AtMost:
    """Gives up what runs inside after so many seconds, at the next step of Python; None is no limit.

    In another thread than the main one there is none either, as no signal reaches it.

    Raises:
        TooLongError: the time was over.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds if threading.current_thread() is threading.main_thread() else None
        self.working = False

    def __enter__(self) -> None:
        """Set the alarm; somebody else's waits."""
        if self.seconds is not None:
            self.began, self.before = time.monotonic(), signal.signal(signal.SIGALRM, self._ring)
            self.working = True
            self.left, self.interval = signal.setitimer(signal.ITIMER_REAL, self.seconds, AGAIN)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Put the alarm away, set the other one again, and tell that the time was over."""
        if self.seconds is None:
            return
        self.working = False
        others = (
            max(self.left - (time.monotonic() - self.began), 1e-6) if self.left else 0.0
        )  # rung late, if it was due
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self.before)
        signal.setitimer(signal.ITIMER_REAL, others, self.interval)
        if isinstance(error, _Alarm):
            raise TooLongError(f"given up after {self.seconds:g} s") from None

    def _ring(self, _: int, frame: FrameType | None) -> None:
        """End the work, unless it has just ended by itself and this class's own code runs."""
        if self.working and not (frame and frame.f_code.co_filename == __file__):
            raise _Alarm
