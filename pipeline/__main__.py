"""The program's start: the first worker imports torch while this process imports the rest."""

import sys

from pipeline.orchestrate.forking import start_ahead, stop_ahead


def main() -> None:
    """Run the console script, and `python -m pipeline`."""
    try:
        start_ahead(sys.argv[1:])
        from pipeline.cli import app

        code = app.main()
    finally:
        stop_ahead()
    sys.exit(code)


if __name__ == "__main__":
    main()
