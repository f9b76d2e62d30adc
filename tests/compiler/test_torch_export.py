"""What is exported reads data of the batch at hand, and sets none but, for torch.onnx, of weights."""

import pytest
import torch
from torch import nn

from pipeline.compiler.network_calls import exportable


@pytest.mark.parametrize("may_set_weights", [False, True])
def test_data_is_not_set(may_set_weights: bool) -> None:
    """A graph would keep what was there before."""
    value, weight = torch.ones(2), nn.Parameter(torch.ones(2))
    with pytest.raises(NotImplementedError, match="sets a tensor's data"), exportable(may_set_weights):
        value.data = torch.zeros(2)
    if not may_set_weights:
        with pytest.raises(NotImplementedError, match="sets a tensor's data"), exportable():
            weight.data = torch.zeros(2)
        return
    with exportable(may_set_weights):
        weight.data = torch.zeros(2)
    assert not weight.any()


def test_data_is_read_by_an_operator_that_a_graph_holds() -> None:
    value = torch.ones(2, requires_grad=True)
    with exportable():
        read = value.data
    assert torch.equal(read, value)
    assert read.data_ptr() == value.data_ptr()
    assert not read.requires_grad
