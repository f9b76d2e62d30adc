"""Dotted names of networks and stages: what they mean in a checkout and installed."""

import subprocess
import sys
from pathlib import Path

import pytest

from conf import ROOT, child
from pipeline.config.model_request import check_target
from pipeline.config.request_error import RequestError
from pipeline.inputs import targets


@pytest.mark.parametrize("target", ["..unet.UNet", "models.unet.UNet; import os", "a b.c", ""])
def test_what_is_no_dotted_name_is_refused(target: str) -> None:
    with pytest.raises(RequestError, match="it is no dotted name; name my_package"):
        check_target("model.target", target, "my_package.MyNet")


def test_a_users_own_models_py_may_not_have_the_name_of_one_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`models.unet.UNet` is the program's network, whatever lies in the current folder."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "unet.py").touch()
    assert targets.hidden("models.unet.UNet") is None
    monkeypatch.chdir(tmp_path)
    assert targets.hidden("models.unet.UNet") == Path("models/unet.py")
    assert targets.hidden("models.mine.MyNet") is None


def test_installed_the_programs_modules_lie_in_one_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target names them as in a checkout; a name that the program doesn't have is the user's."""
    assert targets.imported_as("pipeline.stages.half") == "pipeline.stages.half"
    monkeypatch.setattr(targets, "PACKAGE", "unet_ladder")
    assert targets.imported_as("models.unet") == "unet_ladder.models.unet"
    assert targets.imported_as("models.mine") == "models.mine"
    assert targets.imported_as("my_package.nets") == "my_package.nets"
    monkeypatch.setattr(targets, "ROOT", ROOT / "pipeline")
    assert targets.imported_as("pipeline.stages.half") == "unet_ladder.stages.half"


def test_a_module_of_the_current_folder_hides_none_of_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker doesn't look there first: the folder is the last place where a target is looked up."""
    (tmp_path / "a_target_of_mine.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [place for place in sys.path if place])
    assert targets.import_target("a_target_of_mine").__file__ == str(tmp_path / "a_target_of_mine.py")
    assert sys.path[-1] == str(tmp_path)
    del sys.modules["a_target_of_mine"]


def test_a_child_does_not_look_into_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text("raise SystemExit('the wrong module')")
    started = child("pipeline.predict", "--help")
    done = subprocess.run(**started, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
