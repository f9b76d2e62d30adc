"""The program in a folder that has packages of the same names as its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config import own_packages
from pipeline.config.request_error import RequestError
from tests.cli.conftest import ROOT
from tests.config.test_load import asked, composed

ROOMS = ("cli", "config", "worker", "lessons")  # with which a program of ours begins
START = f"""
import importlib, sys
for room in {ROOMS}:
    for name in [name for name in sys.modules if name.split(".")[0] in ("pipeline", "models", "conf")]:
        del sys.modules[name]
    importlib.import_module(f"pipeline.{{room}}")
    import models, conf, mine
    print(room, *models.__path__, *conf.__path__)
from hydra import compose, initialize_config_module
with initialize_config_module("conf", version_base="1.3"):
    print(compose("config", ["stage=eager", "preset=smoke"]).stage.target)
"""


def test_packages_of_the_users_own_are_not_taken_for_ours(tmp_path: Path) -> None:
    """Python looks in the folder first; our nets and configuration are taken all the same, and his other code."""
    for name in ("models", "conf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
    (tmp_path / "mine.py").touch()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", START]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    ours = [f"{room} {ROOT / 'models'} {tmp_path / 'models'} {ROOT / 'conf'}" for room in ROOMS]
    assert done.stdout.splitlines() == [*ours, "pipeline.stages.eager"]


def in_a_notebook(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """What Python says of code that is run in a folder, with this program in its path."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_users_own_models_may_come_first(tmp_path: Path) -> None:
    """As in a notebook, which makes its net before it measures it: both are found, and what was imported stays."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "__init__.py").write_text("from models.nets import Tiny")
    (tmp_path / "models" / "nets.py").write_text("class Tiny: pass")
    (tmp_path / "models" / "more.py").write_text("from . import nets")
    code = "from models import Tiny; import pipeline.notebook, models.unet, models.more as more"
    done = in_a_notebook(tmp_path, f"{code}; print(models.unet.__file__); assert more.nets.Tiny is Tiny")
    assert (done.stdout.strip(), done.stderr) == (str(ROOT / "models" / "unet.py"), "")


THEIRS = {"unet.py": "from models.unet import UNet", "../models.py": "import models"}


@pytest.mark.parametrize("name", THEIRS)
def test_users_modules_that_leave_no_room_for_ours_are_named(tmp_path: Path, name: str) -> None:
    """Else the user's net would be ours of the same name, or ours his."""
    file = (tmp_path / "models" / name).resolve()
    if file.parent.name == "models":
        file.parent.mkdir()
        (file.parent / "__init__.py").touch()
    file.write_text("class UNet: pass")
    done = in_a_notebook(tmp_path, f"{THEIRS[name]}; import pipeline.notebook")
    said = done.stderr.splitlines()[-1]
    assert said.startswith(f"ImportError: {file}: this program has ")
    assert said.endswith("call yours otherwise")


def test_a_net_that_ours_would_hide_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the command line, where model.target=models.unet.UNet would be our U-Net without a word."""
    theirs = tmp_path / "models" / "unet.py"
    theirs.parent.mkdir()
    theirs.write_text("class UNet: pass")
    words = ("model=custom", "model.target=models.unet.UNet")
    assert asked(composed(*words)).model.target == "models.unet.UNet"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=f"this program's own; {theirs} has its name: call it otherwise"):
        asked(composed(*words))
    assert asked(composed("model=unet")).model.target == "models.unet.UNet"


def test_an_incomplete_installation_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_packages, "ROOT", tmp_path)
    with pytest.raises(ImportError, match="models: not there"):
        own_packages.claim()
