"""`python -m pipeline.slim what-if RUN` and `python -m pipeline.slim train RUN --target 4x`."""

import sys

from pipeline.slim.command import main

if __name__ == "__main__":
    sys.exit(main())
