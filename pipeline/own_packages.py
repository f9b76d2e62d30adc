"""This program's own `models` and `conf`, whatever folder it is started in.

Python looks first in the folder where it is started, and many a project has packages of these names.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("models", "conf")


def claim() -> None:
    """Import our packages from beside this one, before anything imports others of their names.

    Raises:
        ImportError: one isn't there: the installation is incomplete.
    """
    for name in NAMES:
        spec = PathFinder.find_spec(name, [str(ROOT)])
        if spec is None or spec.loader is None:
            raise ImportError(f"{ROOT / name}: not there, though it is a part of this program; install it again")
        if name not in sys.modules:
            sys.modules[name] = package = module_from_spec(spec)
            spec.loader.exec_module(package)
