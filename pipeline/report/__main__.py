"""`python -m pipeline.report RUN [key=value]`: draw a report again, of a run, of a sweep, or of several."""

import sys

from pipeline.config.importing import undisturbed

if __name__ == "__main__":
    with undisturbed("pipeline.report.redraw_command"):
        from pipeline.report.redraw_command import main
    sys.exit(main())
