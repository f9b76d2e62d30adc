"""The program while it imports, for half a second: nothing is saved yet, and much of what it makes stays for good."""

import gc
import signal


def begin() -> None:
    """Let Ctrl-C end the process as the system does, where it would be a traceback, and collect no garbage."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell may have had it ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.disable()  # it would walk all that is imported, again and again


def end() -> None:
    """Take back what `begin` did; the collector never walks what there is by now."""
    gc.freeze()
    gc.enable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
