"""`python -m pipeline.export RUN --to DIR`: the winner of a run, as a folder that runs without this project."""

import sys

from pipeline.config.importing import undisturbed

if __name__ == "__main__":
    with undisturbed("pipeline.export.export_command"):
        from pipeline.export.export_command import main
    sys.exit(main())
