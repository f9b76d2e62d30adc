"""What an exported program calls is named as the operation that makes a new tensor, or refused in one line."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pipeline.compiler.aten import aten, functional_name
from pipeline.compiler.graph import UnsupportedError
from tests.compiler.nets import error, image, traced

OPS = torch.ops.aten


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (OPS.relu.default, "aten.relu.default"),
        (OPS.relu_.default, "aten.relu.default"),
        (OPS.__and__.Tensor, "aten.__and__.Tensor"),
        (OPS.__iand__.Tensor, "aten.__and__.Tensor"),
        (OPS._to_copy.default, "aten._to_copy.default"),
    ],
)
def test_the_operation_that_makes_a_new_tensor_is_named(target: object, name: str) -> None:
    assert functional_name(target) == name
    assert aten(name) is not None


@pytest.mark.parametrize("target", [OPS.add.out, torch.add, torch.ops.higher_order.cond])
def test_what_has_no_such_form_is_refused(target: object) -> None:
    with pytest.raises(UnsupportedError):
        functional_name(target)


class Masked(nn.Module):
    """Python's operators on masks, which ATen names with underscores at both ends."""

    def forward(self, batch: Tensor) -> Tensor:
        return torch.where((batch > 0) & (batch < 1), batch, -batch)


def test_a_net_with_python_s_operators_runs() -> None:
    batch = image(1, 3, 8, 8)
    assert error(traced(Masked(), batch), Masked(), batch) == 0


@pytest.fixture
def foreign() -> Callable[[Tensor], Tensor]:
    """An operation that isn't ATen's."""

    @torch.library.custom_op("unet_ladder_tests::twice", mutates_args=())
    def twice(batch: Tensor) -> Tensor:
        return batch * 2

    twice.register_fake(torch.empty_like)
    return twice


def test_a_net_with_a_foreign_operation_is_refused_in_one_line(foreign: Callable[[Tensor], Tensor]) -> None:
    """Where it is traced, so that a stage can say so and run the half net."""

    class Foreign(nn.Module):
        def forward(self, batch: Tensor) -> Tensor:
            return foreign(batch)

    with pytest.raises(UnsupportedError, match=r"unet_ladder_tests\.twice\.default: no operation of ATen"):
        traced(Foreign(), image(1, 3, 8, 8))
