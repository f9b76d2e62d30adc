"""`python -m pipeline.lessons`: small experiments on your device, each with a table, a chart and what it showed."""

import sys

from pipeline.lessons.lessons_command import main

if __name__ == "__main__":
    sys.exit(main())
