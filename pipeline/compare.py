"""`python -m pipeline.compare A B`: what changed from run A to run B beyond the noise, stage by stage."""

import sys

from pipeline.config.importing import undisturbed

if __name__ == "__main__":
    with undisturbed("pipeline.report.comparison"):
        from pipeline.report.comparison import main
    sys.exit(main())
