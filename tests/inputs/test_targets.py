"""What a configuration may name: nets and stages, and never a function that does something else."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conf import ROOT
from models.named_code import maker_of_net
from pipeline.config.load import check_target
from pipeline.config.request_error import RequestError
from pipeline.errors import ModelError
from pipeline.inputs import targets
from pipeline.inputs.targets import borrowed, refusal
from pipeline.stages.api import StageError
from pipeline.worker.stage_target import build_function
from tests.worker.jobs import EAGER

MINE = """
import os, shutil
from pathlib import Path
from torch import nn
import pipeline.stages.eager
Path("imported").touch()
system, copy, Reader, call = os.system, shutil.copyfile, __import__("pickle").Unpickler, print
Alias = nn.Conv2d
class MyNet(nn.Module): ...
def own(work): ...
build = os.system
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's own, in the folder where he is."""
    (tmp_path / "own_package.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_package"
    sys.modules.pop("own_package", None)


FORBIDDEN = [
    "os.system",
    "posix.system",
    "subprocess.Popen",
    "shutil.copyfile",
    "builtins.exec",
    "importlib.import_module",
    "urllib.request.urlopen",
    "pickle.loads",
    "antigravity.fly",
    "__main__.main",
    "torch.load",
    "torch.hub.load",
    "torch.ops.load_library",
    "torch.nn.Conv2d",
    "numpy.load",
    "hydra.utils.call",
    "pytest.main",  # not pip: where it is looked for, setuptools can no longer be imported
    "pipeline.cli.app",
    "pipeline",
    "..unet.UNet",
    "models.unet.UNet; import os",
    "a b.c",
    "",
]


@pytest.mark.parametrize("target", FORBIDDEN)
def test_what_is_no_net_is_refused_before_it_is_imported(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name alone, in the parent and in the worker, for a net and for a stage."""
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail(f"imported {name}"))
    with pytest.raises(RequestError) as asked:
        check_target("model.target", target, "my_package.MyNet")
    with pytest.raises(ModelError) as named:
        maker_of_net(target)
    with pytest.raises(StageError) as staged:
        build_function(replace(EAGER, target=target))
    for caught in (asked, named, staged):
        assert target in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "target", ["models.unet.UNet", "pipeline.stages.half", "torchvision.models.segmentation.X", "monai.networks.X"]
)
def test_nets_and_stages_are_allowed(target: str) -> None:
    assert refusal(target) is None


def test_code_of_the_users_own_is_allowed_by_name(mine: str) -> None:
    """Deciding so imports nothing."""
    assert refusal(f"{mine}.MyNet") is None
    assert not Path("imported").exists()
    assert maker_of_net(f"{mine}.MyNet").__name__ == "MyNet"


@pytest.mark.parametrize("name", ["system", "copy", "Reader", "call", "Alias", "shutil"])
def test_an_alias_is_what_it_stands_for(mine: str, name: str) -> None:
    """A name in the user's module that is bound to another's function or class."""
    with pytest.raises(ModelError) as caught:
        maker_of_net(f"{mine}.{name}")
    assert "\n" not in str(caught.value)
    assert borrowed(getattr(sys.modules[mine], name))


def test_a_build_that_is_another_s_function_is_refused(mine: str) -> None:
    with pytest.raises(StageError, match="none of its own"):
        build_function(replace(EAGER, target=mine))
    assert borrowed(sys.modules[mine].own) is None


def test_an_installed_package_is_of_nets_if_it_needs_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not because a part of its name is torch's."""
    found = {"nets": ["nets"], "tools": ["tools"]}
    needed = {"nets": ["numpy", "torch>=2.1 ; extra == 'x'"], "tools": ["torchmetrics", "torch-geometric"]}
    monkeypatch.setattr(targets, "packages_distributions", lambda: found)
    monkeypatch.setattr(targets, "requires", needed.get)
    targets.is_of_nets.cache_clear()
    assert (targets.is_of_nets("nets"), targets.is_of_nets("tools")) == (True, False)
    targets.is_of_nets.cache_clear()


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
