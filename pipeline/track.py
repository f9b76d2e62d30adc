"""`python -m pipeline.track RUN --to mlflow|wandb`: a run's figures for a tracker of experiments."""

import sys

from pipeline.report.trackers import main

if __name__ == "__main__":
    sys.exit(main())
