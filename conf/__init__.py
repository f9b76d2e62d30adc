"""Every knob, composed by Hydra; and where the program's packages lie."""

import os
import sys
from pathlib import Path
from typing import TypedDict

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent  # holds conf/ and models/: the checkout, or the installed package
PACKAGE = __name__.rpartition(".")[0]  # the one package that holds all others if installed; empty in a checkout


class Child(TypedDict):
    """Arguments of `subprocess.Popen` and `subprocess.run`."""

    args: list[str]
    env: dict[str, str]


def safe_path() -> list[str]:
    """Return this process's `sys.path` without the current folder, as `python -P` has it, and with the packages."""
    kept = [place for place in sys.path if place and Path(place).resolve() not in (Path.cwd(), ROOT)]
    return kept if PACKAGE else [str(ROOT), *kept]


def child(module: str, *words: str) -> Child:
    """Return how to start one of the program's own modules as a process.

    Python does not look into the current folder then, where a file may have the name of a module. In a checkout the
    child is told where the packages lie.
    """
    path = [*([] if PACKAGE else [str(ROOT)]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path)} if path else dict(os.environ)
    return {"args": [sys.executable, "-P", "-m", module, *words], "env": env}
