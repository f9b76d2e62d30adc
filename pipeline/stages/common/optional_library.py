"""Libraries that only one stage needs: an extra of pyproject.toml brings them, and without it the stage is skipped."""

import importlib
from types import ModuleType

from pipeline.records.error_line import first_line
from pipeline.stages.api import Skip, StageError


def library(module: str, extra: str) -> ModuleType:
    """The module of a library that an extra brings.

    Args:
        module: its import path.
        extra: that of pyproject.toml which holds the library.

    Raises:
        Skip: it isn't installed; the line names the command that installs it.
        StageError: it is there and can't be imported.
    """
    name = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        remedy = f"python -m pip install --editable '.[{extra}]'"
        if isinstance(error, ModuleNotFoundError) and error.name == name:
            raise Skip(f"{name} isn't installed; {remedy} installs it", "missing library") from error
        raise StageError(
            f"{module} can't be imported ({first_line(error)}); {remedy} brings what it needs", "missing library"
        ) from error
