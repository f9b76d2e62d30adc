"""Which names a configuration may have imported, decided before anything is; to import a module is to run it.

Allowed are this program's nets and stages, packages of nets, and code of the user's own, which he allows by naming it.
"""

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path

from conf import PACKAGE, ROOT

OWN_ROOMS = {"models": "models.", "pipeline": "pipeline.stages."}  # of this program
NET_PACKAGES = {
    *("torchvision", "segmentation_models_pytorch", "monai", "timm", "diffusers", "transformers"),
    "dynamic_network_architectures",  # nnU-Net's nets
}
INSTALLED = {"site-packages", "dist-packages"}
LAYERS = re.compile(r"torch\.nn(\.modules)?(\.[a-z]\w*)?\.[A-Z]\w*")  # torch's, which may be an option's value
CLASS = "_class_"  # the only key of an option's value that stands for a class


def refusal(target: str) -> str | None:
    """Why what a dotted name stands for may not be imported, in a clause; None where it may, or isn't there."""
    top = target.partition(".")[0]
    if not all(part.isidentifier() for part in target.split(".")):
        return "it is no dotted name"
    if top in OWN_ROOMS:
        return (
            None if target.startswith(OWN_ROOMS[top]) else f"of this program's own only {OWN_ROOMS[top]}… can be named"
        )
    if top in sys.stdlib_module_names or top in (*sys.builtin_module_names, "__main__"):
        return f"{top} is Python's own library"
    if top in NET_PACKAGES:
        return None
    folder = home(top)
    if folder is None or not INSTALLED & set(folder.parts):
        return None
    return None if is_of_nets(top) else f"{top} is installed here and is no package of nets"


def refusal_of_class(target: object) -> str | None:
    """Why a class may not be the value of a net's option, in a clause; None where it may: torch's layers, and nets."""
    if not isinstance(target, str) or "." not in target:
        return "it is no dotted name"
    return None if LAYERS.fullmatch(target) else refusal(target)


def classes_named_in(value: object) -> Iterator[object]:
    """What stands for a class in the value of a net's option, however deep: X of each {_class_: X}."""
    if isinstance(value, Mapping):
        if CLASS in value:
            yield value[CLASS] if len(value) == 1 else None
        else:
            yield from (found for part in value.values() for found in classes_named_in(part))
    elif isinstance(value, list | tuple):
        yield from (found for part in value for found in classes_named_in(part))


def is_own_code(module: str) -> bool:
    """Whether a module is code of the user's, and no part of this program or of a package that is installed."""
    top = module.partition(".")[0]
    if (top in OWN_ROOMS and not PACKAGE) or top in NET_PACKAGES or refusal(module):
        return False
    folder = home(top)
    return folder is not None and not INSTALLED & set(folder.parts)


def imported_as(module: str) -> str:
    """Return the name under which the module of a target is imported.

    A target names the program's own modules as they lie in a checkout; installed, they lie in one package.
    """
    top, _, rest = module.partition(".")
    if not PACKAGE or top not in OWN_ROOMS:
        return module
    within = module if top == "models" else rest
    place = ROOT.joinpath(*within.split("."))
    return f"{PACKAGE}.{within}" if place.is_dir() or place.with_suffix(".py").exists() else module


def hidden(target: str) -> Path | None:
    """Return the user's file in ./models that has the name of one of the program's networks; None if there is none."""
    theirs = Path(*target.split(".")[:2]).with_suffix(".py")
    ours = ROOT / theirs
    there = target.startswith(OWN_ROOMS["models"]) and ours.exists() and theirs.exists()
    return theirs if there and not theirs.samefile(ours) else None


def home(top: str) -> Path | None:
    """Where a package or module lies, found without importing it; None where it isn't found."""
    try:
        spec: ModuleSpec | None = find_spec(top) or PathFinder.find_spec(top, [str(Path.cwd())])
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = [spec.origin] if spec.has_location and spec.origin else list(spec.submodule_search_locations or [])
    return Path(places[0]) if places else None


@cache
def is_of_nets(top: str) -> bool:
    """Whether an installed package says of itself that it needs torch; torch itself doesn't, nor do its own parts."""
    for name in packages_distributions().get(top, []):
        try:
            needed = requires(name) or []
        except PackageNotFoundError:
            continue
        if any(re.match(r"torch(?![\w.-])", line) for line in needed):
            return True
    return False


def borrowed(found: object) -> str | None:
    """Why a class or function that was found under an allowed name is none of that code's own; None where it is.

    A name that is bound to `os.system` or to `shutil.copyfile` is still theirs.
    """
    if not inspect.isclass(found) and not inspect.isfunction(found):
        return "it is neither a class nor a function written in Python"
    module = found.__module__
    if (why := refusal(module)) and module not in OWN_ROOMS:
        return f"it is {module}.{found.__qualname__}: {why}"
    return None
