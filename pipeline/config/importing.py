"""A program while it imports, for half a second: nothing is saved yet, and much of what it makes stays for good."""

import gc
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed(module: str) -> Iterator[None]:
    """Let Ctrl-C end the process as the system does, where it would be a traceback, and collect no garbage.

    Where the module has been imported before, as at a second request within one process, nothing is changed.
    """
    if module in sys.modules:
        yield
        return
    heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell may have had it ignored
    if heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()  # it would walk all that is imported, again and again
    try:
        yield
    finally:
        gc.freeze()  # the collector never walks what there is by now
        gc.enable()
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
