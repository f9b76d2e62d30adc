"""A head behind a norm becomes a part of the norm's pass, unless something else reads the values between."""

from typing import Any

import pytest
import torch
from torch import fx

from pipeline.compiler.tuning.own_norms import found_passes
from tests.compiler.test_own_norms import graph

aten = torch.ops.aten


def parts() -> tuple[fx.GraphModule, fx.Node, Any]:
    """The net of the other file lowered, the value in fp32 that its head reads, and the logits."""
    made = graph()
    logits: Any = made.graph.find_nodes(op="call_function", target=aten.cat.default)[0]
    return made, logits.args[0][0].args[0].args[0].args[0], logits


def test_the_head_is_found_in_the_order_of_its_logits() -> None:
    made, _, logits = parts()
    sums: list[Any] = logits.args[0]
    (found,) = [one for one in found_passes(made.graph) if one.head is not None]
    assert found.head is not None
    assert found.head.logits is logits
    for number, total in enumerate(sums):
        row = made.get_buffer(str(total.args[0].args[0].args[1].target))
        assert torch.equal(found.head.head.weight[number], row.flatten())
        assert float(found.head.head.bias[number]) == pytest.approx(32 * total.args[0].args[1])


def test_a_value_that_is_read_again_keeps_its_head_with_inductor() -> None:
    """With its norm's pass; the other three are taken."""
    made, wide, _ = parts()
    out: Any = made.graph.find_nodes(op="output")[0]
    with made.graph.inserting_before(out):
        again = made.graph.call_function(aten.neg.default, (wide.args[0],))
    out.args = ((*out.args[0], again),)
    assert [one.head for one in found_passes(made.graph)] == [None] * 3
