"""Nets that answer with more than logits: one part is named, and the weights keep their names."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from models.model_output import tensors_of, with_output
from pipeline.errors import ModelError


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
