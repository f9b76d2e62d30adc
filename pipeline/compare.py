"""`python -m pipeline.compare A B`: what changed from run A to run B beyond the noise, stage by stage."""

import sys

from pipeline.report.comparison import main

if __name__ == "__main__":
    sys.exit(main())
