"""`python -m pipeline.slim what-if RUN`, `… train RUN --target 4x` and `… steps RUN`."""

import sys

from pipeline.command_line import importing

with importing():
    from pipeline.slim.command import main

if __name__ == "__main__":
    sys.exit(main())
