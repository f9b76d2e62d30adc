"""Networks made of a dotted name: classes, functions, and classes as values of their options."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from models.build import build_model
from pipeline.config.load import read_model
from pipeline.config.request_error import RequestError
from pipeline.errors import ModelError

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
    [("number", "returns a int, no"), ("nothing", "returns a NoneType"), ("Thing", "no class of a network")],
)
def test_a_function_that_makes_no_net_is_refused(mine: str, name: str, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        build_model(f"{mine}.{name}", {}, None, 0)


@pytest.mark.parametrize("target", ["os.system", "Conv2d", "torch.nn.functional.relu", None, 5])
def test_what_is_no_layer_is_no_option_s_value(target: Any) -> None:
    for value in ({"_class_": target}, {"_class_": "torch.nn.ReLU", "eps": 1}):
        with pytest.raises(ModelError, match="no class of a layer"):
            build_model("models.unet.UNet", {"layers": [{"inner": value}]}, None, 0)


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        ("os.system", {}, "no class of a network"),
        ("UNet", {}, "no network's class"),
        ("..unet.UNet", {}, "no network's class"),
        ("no_such_package.Net", {}, "can't be imported"),
        ("models.unet.Unet", {}, "did you mean UNet"),
        ("models.unet.UNet", {"bases": 4}, "it takes in_channels, classes, base"),
        (
            "models.unet.UNet",
            {"base": -4},
            r"model\.options \(base=-4\): models\.unet\.UNet fails with them: RuntimeError",
        ),
        ("models.unet.UNet", {"norm": {"_class_": "torch.nn.InstanceNorm"}}, "did you mean InstanceNorm"),
        ("models.unet.UNet", {"norm": {"_class_": "torch.nn.nn.Conv"}}, "can't be imported"),
    ],
)
def test_a_target_that_is_no_net_is_refused(target: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        build_model(target, options, None, 0)


def test_random_weights_follow_the_seed() -> None:
    first, again, other = (build_model("models.unet.UNet", {"base": 4}, None, seed) for seed in (0, 0, 1))
    weight = "head.weight"
    assert torch.equal(first.get_parameter(weight), again.get_parameter(weight))
    assert not torch.equal(first.get_parameter(weight), other.get_parameter(weight))
