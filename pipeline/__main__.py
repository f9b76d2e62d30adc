"""The program's start: the console script, and `python -m pipeline`."""

import sys

from pipeline.command_line import importing


def main() -> None:
    """Answer the command line, and leave with its exit code."""
    with importing():
        from pipeline.cli import app
    sys.exit(app.main())


if __name__ == "__main__":
    main()
