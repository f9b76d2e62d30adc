"""Weights in fp8: a scale for each output channel, taps that are rounded together, and saturation."""

import torch

from pipeline.compiler.graph.layers import quantised
from pipeline.kernels.common.nhwc import FP8_MAX, in_fp8
from tests.compiler.nets import image


def test_taps_rounded_together_keep_their_sum() -> None:
    weight = image(9, 32, 16)
    apart, scale = quantised(weight, 1)
    together, same = quantised(weight, 1, summed=0)
    exact = (weight / scale[:, None]).sum(0)
    errors = [(q.float().sum(0) - exact).abs().mean() for q in (apart, together)]
    assert torch.equal(scale, same)
    assert errors[1] < errors[0] / 8
    assert float((together.float() * scale[:, None] - weight).norm() / weight.norm()) < 5e-2


def test_a_channel_without_weights_rounds_to_zero_and_too_large_a_value_saturates() -> None:
    weight = torch.zeros(9, 16, 16)
    packed, scale = quantised(weight, 1, summed=0)
    assert not packed.float().any()
    assert bool((scale > 0).all())
    assert in_fp8(torch.tensor([1e9, -1e9])).float().tolist() == [FP8_MAX, -FP8_MAX]
