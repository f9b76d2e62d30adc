"""Functions that make nets, and classes as values of their options: allowed by name, and nothing else."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from models.build import build_model
from models.named_code import maker_of_net
from pipeline.config.load import read_model
from pipeline.config.request_error import RequestError
from pipeline.errors import ModelError
from pipeline.inputs.targets import classes_named_in, is_own_code, refusal_of_class

MINE = """
from torch import nn
from models.unet import UNet

def net(norm, width: int = 4): return nn.Sequential(nn.Conv2d(3, width, 1), norm(width))
def number(): return 5
def nothing(): return None
class Thing: ...
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's own."""
    (tmp_path / "my_factory.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "my_factory"
    sys.modules.pop("my_factory", None)


def test_a_function_of_the_users_own_makes_the_net(mine: str) -> None:
    """Its options are checked before anything is imported; a class is an option's value."""
    norm = {"_class_": "torch.nn.InstanceNorm2d"}
    asked = {"name": "custom", "target": f"{mine}.net", "options": {"norm": norm, "width": 8}, "checkpoint": None}
    model = read_model(asked)
    assert mine not in sys.modules
    net: Any = build_model(model.target, model.options, None, 0)
    assert isinstance(net[1], nn.InstanceNorm2d)
    assert net[0].out_channels == 8
    for options, said in (({"norm": norm, "widht": 8}, "did you mean 'width'"), ({}, "needs it, and nothing sets it")):
        with pytest.raises(RequestError, match=said):
            read_model({**asked, "options": options})


@pytest.mark.parametrize(
    ("name", "said"),
    [("number", "returns a int, no"), ("nothing", "returns a NoneType"), ("Thing", "no such class of a net")],
)
def test_a_function_that_makes_no_net_is_refused(mine: str, name: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        build_model(f"{mine}.{name}", {}, None, 0)


@pytest.mark.parametrize(
    "target",
    [
        "torchvision.models.get_model",
        "torchvision.datasets.utils.download_url",
        "models.image_batches.to_batch",
    ],
)
def test_functions_of_packages_are_no_nets(target: str) -> None:
    """Some read files or the network; this program's own are taken if they return a net."""
    with pytest.raises(ModelError, match="a function, and no such class of a net"):
        maker_of_net(target)
    assert maker_of_net("models.library_nets.smp_net").__name__ == "smp_net"


def test_own_code_is_neither_this_program_s_nor_installed(mine: str) -> None:
    assert is_own_code(mine)
    assert not any(is_own_code(name) for name in ("models.train", "torchvision.models", "numpy", "os", "monai.nets"))


@pytest.mark.parametrize(
    "target", ["os.system", "torch.load", "torch.nn.functional.relu", "Conv2d", "numpy.load", None, 5]
)
def test_what_is_no_layer_is_no_option_s_value(target: Any) -> None:
    """Refused by its name alone, by parent and worker, however deep it lies."""
    assert refusal_of_class(target)
    options = {"layers": [{"inner": {"_class_": target}}]}
    asked = {"name": "custom", "target": "my_package.MyNet", "options": options, "checkpoint": None}
    with pytest.raises(RequestError, match=r"torch\.nn\.InstanceNorm2d"):
        read_model(asked)
    with pytest.raises(ModelError, match="no class of a layer"):
        build_model("models.unet.UNet", options, None, 0)


@pytest.mark.parametrize(
    ("value", "said"),
    [("torch.nn.InstanceNorm", "did you mean InstanceNorm"), ("torch.nn.nn.Conv", "can't be imported")],
)
def test_a_layer_that_torch_lacks_is_one_line(value: str, said: str) -> None:
    assert refusal_of_class(value) is None
    with pytest.raises(ModelError, match=said):
        build_model("models.unet.UNet", {"norm": {"_class_": value}}, None, 0)


def test_a_class_stands_alone_in_its_place() -> None:
    """Other keys beside it make it no class, so that nothing is passed over."""
    assert list(classes_named_in({"a": [{"_class_": "x.Y"}], "b": {"_class_": "x.Y", "eps": 1}})) == ["x.Y", None]
