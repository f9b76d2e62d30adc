"""This program's own `models` and `conf`, whatever folder it is started in.

Python looks first in the folder where it is started, and many a project has packages of these names. What a user has in
a `models` of his own is found behind ours: `models.my_net` is his, `models.unet` ours.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("models", "conf")
OURS = Path("pipeline", "protocol.py")  # in every folder that holds this program
INSTALLED = {"site-packages", "dist-packages"}


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
    places = sys.modules["models"].__path__
    for folder in users_own("models"):
        if str(folder) not in places:
            places.append(str(folder))


def users_own(name: str) -> list[Path]:
    """The folders of this name that lie where Python looks first: where it is started, and in PYTHONPATH; not ours."""
    looked = dict.fromkeys([Path.cwd(), *(Path(place).resolve() for place in sys.path if place)])
    theirs = [place for place in looked if not INSTALLED & set(place.parts) and not (place / OURS).exists()]
    return [place / name for place in theirs if (place / name).is_dir()]
