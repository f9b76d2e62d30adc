"""`python -m pipeline.verify BUNDLE`: whether an exported bundle is here what it was where it was measured."""

import sys

from pipeline.config.importing import undisturbed

if __name__ == "__main__":
    with undisturbed("pipeline.export.verification"):
        from pipeline.export.verification import main
    sys.exit(main())
