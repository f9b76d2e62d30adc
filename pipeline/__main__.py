"""The program's start: the console script, and `python -m pipeline`."""

import sys

from pipeline.cli import app


def main() -> None:
    """Answer the command line, and leave with its exit code."""
    sys.exit(app.main())


if __name__ == "__main__":
    main()
