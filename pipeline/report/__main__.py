"""`python -m pipeline.report RUN [key=value]`: draw a report again, of a run, of a sweep, or of several."""

import sys

from pipeline.command_line import importing

with importing():
    from pipeline.report.write import main

if __name__ == "__main__":
    sys.exit(main())
