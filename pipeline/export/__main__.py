"""`python -m pipeline.export RUN --to DIR`: the winner of a run, as a folder that runs without this project."""

import sys

from pipeline.command_line import importing

with importing():
    from pipeline.export.command import main

if __name__ == "__main__":
    sys.exit(main())
