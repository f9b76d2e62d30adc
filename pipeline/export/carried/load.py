"""The network of this bundle, with the packages of requirements.txt alone: `masks(load(), images)`."""

import hashlib
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # one line for an error; `python -m pip install -r requirements.txt`
    sys.excepthook = lambda kind, error, _: sys.stderr.write(f"error: {kind.__name__}: {error}\n")

HERE = Path(__file__).resolve().parent
CONTRACT = json.loads((HERE / "contract.json").read_text(encoding="utf-8"))
SUPPORT = runpy.run_path(str(HERE / "support.py"))  # forms of a network, a library's switches, normalisation


def load() -> Callable[..., Any]:
    """Return a function of the inputs in contract.json, in order; ValueError for a changed file."""
    for line in (HERE / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        wanted, _, name = line.partition("  ")
        if hashlib.sha256((HERE / name).read_bytes()).hexdigest() != wanted:
            raise ValueError(f"{name}: not the file that was exported")
    answer: Callable[..., Any] = SUPPORT["opened"](HERE / CONTRACT["artefact"])
    return answer


def masks(run: Callable[..., Any], images: Any) -> Any:
    """Return the class of every pixel, [n, height, width], of images [n, height, width, channels] as in their files."""
    return SUPPORT["classes"](run(SUPPORT["prepare"](SUPPORT["fitting"](images))))


if __name__ == "__main__":
    sys.exit(runpy.run_path(str(HERE / "golden_check.py"))["main"](SUPPORT | globals()))
