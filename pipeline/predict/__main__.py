"""`python -m pipeline.predict RUN images/ --out masks/`: the masks of a folder, by a stage of a run or by a bundle."""

import sys

from pipeline.config.importing import undisturbed

if __name__ == "__main__":
    with undisturbed("pipeline.predict.predict_command"):
        from pipeline.predict.predict_command import main
    sys.exit(main())
