"""Takes a U-Net through every way of running it, checks each answer, measures fairly and names the winner.

From Python, a notebook above all: `from pipeline import measure, load_run, export, predict`.
"""

import importlib
import os
import pwd
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.config.request_error import RequestError
    from pipeline.notebook.finished_run import Run, load_run
    from pipeline.notebook.measured_net import measure
    from pipeline.notebook.taken_home import Masks, export, predict

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # ONNX Runtime 1.31 reports to its maker unless told before
os.environ.setdefault("DO_NOT_TRACK", "1")  # the same for MLflow and Hugging Face's hub

__all__ = ["Masks", "RequestError", "Run", "export", "load_run", "measure", "predict"]

# Where each lies; nothing is imported before it is asked for, so that the parent of a run stays free of torch.
HOMES = {
    "Masks": "pipeline.notebook.taken_home",
    "RequestError": "pipeline.config.request_error",
    "Run": "pipeline.notebook.finished_run",
    "export": "pipeline.notebook.taken_home",
    "load_run": "pipeline.notebook.finished_run",
    "measure": "pipeline.notebook.measured_net",
    "predict": "pipeline.notebook.taken_home",
}


def name_the_user() -> None:
    """Give a user whom passwd doesn't know, as in a container with `--user`, a name: torch asks for one."""
    if not any(os.environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")):  # which getpass reads
        try:
            pwd.getpwuid(os.getuid())
        except KeyError:
            os.environ["USER"] = f"uid{os.getuid()}"


name_the_user()


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(HOMES[name]), name)


class _Package(ModuleType):
    """Keeps `measure`, `export` and `predict` functions: a room or a command of that name is imported by its path."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
