"""`python -m pipeline.predict RUN images/ --out masks/`: the masks of a folder, by a stage of a run or by a bundle."""

import signal
import sys

from pipeline.command_line import importing

with importing():
    from pipeline.predict.command import main

if __name__ == "__main__":
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C has nothing left to end
    sys.exit(code)
