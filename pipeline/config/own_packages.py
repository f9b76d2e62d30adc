"""This program's own `models` and `conf`, whatever folder it is started in.

Python looks first in the folder where it is started, and many a project has packages of these names. What a user has in
a `models` of his own is found behind ours: `models.my_net` is his, `models.unet` ours.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("models", "conf")
OURS = Path("pipeline", "protocol.py")  # in every folder that holds this program
INSTALLED = {"site-packages", "dist-packages"}


def claim() -> None:
    """Import our packages from beside this one, before anything imports others of their names.

    Where the user's own `models` came first, as in a notebook, its modules stay, and ours are found before them.

    Raises:
        ImportError: one isn't there: the installation is incomplete; or the user's own leave no room for it.
    """
    for name in NAMES:
        spec = PathFinder.find_spec(name, [str(ROOT)])
        if spec is None or spec.loader is None:
            raise ImportError(f"{ROOT / name}: not there, though it is a part of this program; install it again")
        if name not in sys.modules:
            sys.modules[name] = package = module_from_spec(spec)
            spec.loader.exec_module(package)
    models = sys.modules["models"]
    check_theirs(models)
    found = [ROOT / "models", *getattr(models, "__path__", ()), *users_own("models")]
    models.__path__ = list(dict.fromkeys(map(str, found)))


def check_theirs(models: ModuleType) -> None:
    """That what the user imported from a `models` of his own, before anything of ours, leaves room for ours.

    Raises:
        ImportError: it is a file, or one of its modules has the name of one of ours.
    """
    if not hasattr(models, "__path__"):
        raise ImportError(f"{models.__file__}: this program has a package models; call yours otherwise")
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if (
            name.startswith("models.")
            and file
            and ROOT not in Path(file).resolve().parents
            and (theirs := hidden(name))
        ):
            raise ImportError(f"{theirs}: this program has {name}, too; call yours otherwise")


def hidden(module: str) -> Path | None:
    """The user's own file or folder that can't be imported, as it has the name of a module of our `models`."""
    top, _, rest = module.partition(".")
    name = rest.partition(".")[0]
    if top != "models" or not name or not any((ROOT / top / each).exists() for each in (name, f"{name}.py")):
        return None
    theirs = (folder / each for folder in users_own(top) for each in (name, f"{name}.py"))
    return next((path for path in theirs if path.exists()), None)


def users_own(name: str) -> list[Path]:
    """The folders of this name that lie where Python looks first: where it is started, and in PYTHONPATH; not ours."""
    looked = dict.fromkeys([Path.cwd(), *(Path(place).resolve() for place in sys.path if place)])
    theirs = [place for place in looked if not INSTALLED & set(place.parts) and not (place / OURS).exists()]
    return [place / name for place in theirs if (place / name).is_dir()]
