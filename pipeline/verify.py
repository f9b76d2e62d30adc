"""`python -m pipeline.verify BUNDLE`: whether an exported bundle is here what it was where it was measured."""

import sys

from pipeline.export.verification import main

if __name__ == "__main__":
    sys.exit(main())
