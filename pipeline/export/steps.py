"""What a long command is at, a line a step on stderr, as a run's phases are told."""

import time
from collections.abc import Callable

from pipeline.command_line import tell
from pipeline.report.formatting import clean, elapsed

Say = Callable[[str], None]


def steps(say: Say = tell, now: Callable[[], float] = time.monotonic) -> Say:
    """Tells a step, with the minutes and seconds since this was called.

    Args:
        say: is given each line.
        now: gives seconds.
    """
    began = now()
    return lambda step: say(f"[{elapsed(now() - began)}] {clean(step)}")
