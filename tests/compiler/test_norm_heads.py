"""Which sums over channels behind a norm are a head that its pass makes, and which aren't."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from pipeline.compiler.tuning.own_norms import found_passes
from tests.compiler.test_own_norms import graph

aten = torch.ops.aten
Parts = tuple[fx.GraphModule, Any, list[Any], Any]  # nodes whose arguments are known


def parts() -> Parts:
    """The net of the other file lowered: the value in fp32 that its head reads, each class's sum, and the logits."""
    made = graph()
    logits: Any = made.graph.find_nodes(op="call_function", target=aten.cat.default)[0]
    sums = list(logits.args[0])
    return made, sums[0].args[0].args[0].args[0], sums, logits


def read_again(made: fx.GraphModule, node: fx.Node) -> None:
    """Give a value another reader, whose answer is the net's, too."""
    out: Any = made.graph.find_nodes(op="output")[0]
    with made.graph.inserting_before(out):
        again = made.graph.call_function(aten.neg.default, (node,))
    out.args = ((*out.args[0], again),)


def another_value(made: Parts) -> None:
    read_again(made[0], made[1].args[0])


def another_wide(made: Parts) -> None:
    read_again(made[0], made[1])


def another_sum(made: Parts) -> None:
    read_again(made[0], made[2][0])


def another_part(made: Parts) -> None:
    made[3].args = ([*made[2], made[2][0]], 1)


def another_axis(made: Parts) -> None:
    made[3].args = (made[2], 2)


def no_axis(made: Parts) -> None:
    made[3].args = (made[2],)


def sums_over_rows(made: Parts) -> None:
    made[2][0].args = (made[2][0].args[0], [2], True)


def sums_in_another_type(made: Parts) -> None:
    made[2][0].kwargs = {"dtype": torch.float64}


def twice_the_bias(made: Parts) -> None:
    made[2][0].args[0].kwargs = {"alpha": 2}


def a_row_in_half(made: Parts) -> None:
    name = str(made[2][0].args[0].args[0].args[1].target)
    setattr(made[0], name, made[0].get_buffer(name).half())


def a_row_of_one_value(made: Parts) -> None:
    name = str(made[2][0].args[0].args[0].args[1].target)
    setattr(made[0], name, made[0].get_buffer(name)[:, :1])


def test_the_head_is_found_in_the_order_of_its_logits() -> None:
    made, _, sums, logits = parts()
    (found,) = [one for one in found_passes(made.graph) if one.head is not None]
    assert found.head is not None
    assert found.head.logits is logits
    for number, total in enumerate(sums):
        row = made.get_buffer(str(total.args[0].args[0].args[1].target))
        assert torch.equal(found.head.head.weight[number], row.flatten())
        assert float(found.head.head.bias[number]) == pytest.approx(32 * total.args[0].args[1])


@pytest.mark.parametrize(
    "change",
    [
        another_value,
        another_wide,
        another_sum,
        another_part,
        another_axis,
        no_axis,
        sums_over_rows,
        sums_in_another_type,
        twice_the_bias,
        a_row_in_half,
        a_row_of_one_value,
    ],
)
def test_what_is_no_head_stays_inductors(change: Callable[[Parts], None]) -> None:
    """With its norm's pass; the other three are taken."""
    made = parts()
    change(made)
    found = list(found_passes(made[0].graph))
    assert len(found) == 3
    assert [one.head for one in found] == [None] * 3
