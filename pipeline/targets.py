"""The dotted names in a configuration: of a network's class, of a function that makes one, and of a stage.

Importing a module runs it: a configuration is code, as docs/inputs.md says.
"""

import importlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from conf import PACKAGE, ROOT

OWN_ROOMS = {"models": "models.", "pipeline": "pipeline.stages."}  # of this program


def refusal(target: str) -> str | None:
    """Return why a target can't be imported, in a clause; None if it is a dotted name."""
    return None if all(word.isidentifier() for word in target.split(".")) else "it is no dotted name"


def words_that_set(names: Iterable[str], key: str, documentation: str | None) -> tuple[str, str]:
    """Return words to type for arguments, each with the first value that its documentation quotes, and that."""
    words, explained = [], ""
    for name in names:
        line = re.search(rf"^\s*{name}\b[^:\n]*:\s*(\S.*)$", documentation or "", re.MULTILINE)
        value = re.search(r"[\"']([\w.-]+)[\"']", line[1]) if line else None
        words.append(f"'+{key}.{name}={value[1] if value else '…'}'")
        explained += f"; {name}: {line[1].rstrip('.')}" if line else ""
    return " ".join(words), explained


def imported_as(module: str) -> str:
    """Return the name to import a target's module by: installed, the program's own lie in the package unet_ladder."""
    top, _, rest = module.partition(".")
    if not PACKAGE or top not in OWN_ROOMS:
        return module
    within = module if top == "models" else rest
    place = ROOT.joinpath(*within.split("."))
    return f"{PACKAGE}.{within}" if place.is_dir() or place.with_suffix(".py").exists() else module


def import_target(module: str) -> ModuleType:
    """Import the module of a target: the program's own, an installed one, or one in the current folder."""
    if not {"", str(Path.cwd())} & set(sys.path):
        sys.path.append(str(Path.cwd()))  # last, so that no file there hides a module of Python's or of this program
    return importlib.import_module(imported_as(module))


def hidden(target: str) -> Path | None:
    """Return the user's file in ./models that has the name of one of the program's networks; None if there is none."""
    theirs = Path(*target.split(".")[:2]).with_suffix(".py")
    ours = ROOT / theirs
    there = target.startswith(OWN_ROOMS["models"]) and ours.exists() and theirs.exists()
    return theirs if there and not theirs.samefile(ours) else None
