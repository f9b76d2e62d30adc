"""`python -m pipeline.predict RUN images/ --out masks/`: the masks of a folder, by a stage of a run or by a bundle."""

import sys

from pipeline.predict.command import main

if __name__ == "__main__":
    sys.exit(main())
