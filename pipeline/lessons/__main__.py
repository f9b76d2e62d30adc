"""`python -m pipeline.lessons`: small experiments on your device, each with a table, a chart and what it showed."""

import sys

from pipeline.config.importing import undisturbed

if __name__ == "__main__":
    with undisturbed("pipeline.lessons.lessons_command"):
        from pipeline.lessons.lessons_command import main
    sys.exit(main())
