"""The program's start: the first worker's imports begin before its own, so that both are made at a time."""

import sys

from pipeline.config.importing import undisturbed
from pipeline.orchestrate.forking import start_ahead, stop_ahead

PROGRAM = "pipeline.cli.one_request"


def main() -> None:
    """The console script, and `python -m pipeline`."""
    try:
        with undisturbed(PROGRAM):
            start_ahead(sys.argv[1:])
            from pipeline.cli import app
            from pipeline.cli.one_request import answer
        code = app.guard(answer)
    finally:
        stop_ahead()
    sys.exit(code)


if __name__ == "__main__":
    main()
