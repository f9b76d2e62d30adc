"""What a forked worker of a test is: it echoes what it is told, and its ids, with the modules of a bare interpreter."""

import os
import sys


def main() -> None:
    """One line for each that comes: the pid, the session, the parent, and the line."""
    with os.fdopen(int(sys.argv[1]), "w") as messages:
        for line in sys.stdin:
            sys.stdout.write(line)
            messages.write(f"{os.getpid()} {os.getsid(0)} {os.getppid()} {line}")
            messages.flush()
    sys.exit(7)
