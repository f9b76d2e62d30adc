"""Networks made of a dotted name, and the part of their answer that is taken."""

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from models.build import build_model
from models.model_output import tensors_of, with_output
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


class Pair(NamedTuple):
    logits: Tensor
    features: Tensor


@dataclass
class Sample:
    sample: Tensor
    steps: int = 1


ANSWERS: dict[str, Callable[[Tensor], object]] = {
    "tuple": lambda logits: (logits, logits.mean()),
    "list": lambda logits: [logits, logits[..., ::2, ::2]],
    "dict": lambda logits: {"out": logits, "aux": logits + 1},
    "named": lambda logits: Pair(logits, logits),
    "dataclass": Sample,
    "nested": lambda logits: ({"out": [logits]},),
    "tensor": lambda logits: logits,
}


class Answers(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, 2, 1)
        self.kind = kind

    def forward(self, sample: Tensor, steps: int = 1) -> Any:
        return ANSWERS[self.kind](self.head(sample))


IMAGE = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
PARTS = [("tuple", 0), ("tuple", "0"), ("list", 0), ("dict", "out"), ("named", "logits"), ("named", 0)]
PARTS += [("dataclass", "sample"), ("nested", "0.out.0")]


@pytest.mark.parametrize(("kind", "output"), PARTS)
def test_a_part_of_the_answer_is_taken(kind: str, output: int | str) -> None:
    """An index, a key, an attribute, or several; the class keeps its name, the weights theirs, copies their answer."""
    net = Answers(kind).eval()
    names, expected = list(net.state_dict()), net.head(IMAGE)
    adapted = with_output(net, output)
    assert torch.equal(adapted(IMAGE), expected)
    assert torch.equal(copy.deepcopy(adapted)(IMAGE), expected)
    assert (type(adapted).__name__, list(adapted.state_dict())) == ("Answers", names)


def test_every_way_of_compiling_sees_the_adapted_answer() -> None:
    """torch.export, a trace of TorchScript and Dynamo go through the adapted forward."""
    net = with_output(Answers("dict").eval(), "out")
    exported = torch.export.export(net, (IMAGE,), strict=False)
    assert torch.equal(exported.module()(IMAGE), net(IMAGE))
    assert exported.graph_signature.user_inputs == ("sample",)
    traced = torch.jit.trace(net, (IMAGE,), check_trace=False)
    assert torch.equal(traced(IMAGE), net(IMAGE))
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    assert torch.equal(compiled(IMAGE), net(IMAGE))


@pytest.mark.parametrize(
    ("kind", "output", "said"),
    [
        ("dict", "ot", "model.output=ot: no such part of Answers's dict of 2 (out, aux); did you mean 'out'?"),
        ("tuple", 2, "model.output=2: no such part of Answers's tuple of 2 (0, 1); choose one of: 0, 1"),
        ("tensor", 0, "Answers answers with a tensor, which has no parts; leave it out"),
        ("dict", "out.0", "answers with a tensor, which has no parts"),
        ("nested", 0, "a dict of 1 (out); name a tensor in it: model.output=0.out.0"),
    ],
)
def test_a_part_that_is_not_there_is_one_line(kind: str, output: int | str, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        with_output(Answers(kind), output)(IMAGE)
    assert said in str(caught.value)


def test_nothing_is_changed_unasked() -> None:
    """The class is the user's own, and all tensors of an answer are found by the names to be typed."""
    net = Answers("nested")
    assert with_output(net, None) is net
    assert type(net) is Answers
    assert list(tensors_of(net(IMAGE))) == ["0.out.0"]
