"""The program's start: the console script, and `python -m pipeline`."""

import sys

from pipeline.command_line import INTERRUPTED, tell


def main() -> None:
    """Answer the command line, and leave with its exit code."""
    try:
        from pipeline.cli import app

        code = app.main()
    except KeyboardInterrupt:  # while it imports
        tell("error: interrupted")
        code = INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
