"""`python -m pipeline.track RUN --to mlflow|wandb`: a run's figures for a tracker of experiments."""

import sys

from pipeline.config.importing import undisturbed

if __name__ == "__main__":
    with undisturbed("pipeline.report.trackers"):
        from pipeline.report.trackers import main
    sys.exit(main())
