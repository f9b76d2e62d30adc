"""Composed weights are the layers that they stand for: float64 equality, the border on its own, odd sizes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.activation import NONE, RELU
from pipeline.kernels.common.epilogue import Outputs
from pipeline.kernels.polyphase import (
    Composition,
    Scales,
    compose_nearest,
    compose_transposed,
    evaluate,
    pack,
    reference,
    strided_alone,
    transposed_alone,
)

EXACT = 2e-12
SIZES = [(5, 7), (4, 6), (1, 3), (1, 1), (2, 1)]
Upsample = Callable[[Tensor], Tensor]


def normal(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def assert_exact(found: Tensor, wanted: Tensor) -> None:
    """Inside and at each border on its own, relative to the largest value there."""
    assert found.shape == wanted.shape
    error = (found - wanted).abs() / wanted.abs().amax()
    edges = [error[..., 0, :], error[..., -1, :], error[..., :, 0], error[..., :, -1]]
    for part in (error, error[..., 1:-1, 1:-1], *edges):
        assert part.numel() == 0 or float(part.max()) <= EXACT


def layers(up: Upsample, small: Tensor, skip: Tensor | None, weight: Tensor, bias: Tensor, *, first: bool) -> Tensor:
    grown = up(small)
    both = [grown] if skip is None else [grown, skip] if first else [skip, grown]
    return functional.conv2d(torch.cat(both, 1), weight, bias, padding=1)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("up_first", [True, False])
@pytest.mark.parametrize("skip_channels", [0, 3])
@pytest.mark.parametrize("kind", ["transposed", "transposed, no bias", "nearest"])
def test_a_composition_is_the_layers_it_stands_for(
    kind: str, skip_channels: int, up_first: bool, size: tuple[int, int]
) -> None:
    height, width = size
    inner, middle, outer = 6, 6 if kind == "nearest" else 4, 5
    small = normal(3, inner, height, width)
    skip = normal(3, skip_channels, 2 * height, 2 * width) if skip_channels else None
    weight, bias = normal(outer, middle + skip_channels, 3, 3), normal(outer)
    up: Upsample
    if kind == "nearest":
        up = lambda x: functional.interpolate(x, scale_factor=2, mode="nearest")  # noqa: E731
        made = compose_nearest((weight, bias), inner, up_first=up_first)
    else:
        up_weight, up_bias = normal(inner, middle, 2, 2), normal(middle) if kind == "transposed" else None
        up = lambda x: functional.conv_transpose2d(x, up_weight, up_bias, stride=2)  # noqa: E731
        made = compose_transposed((up_weight, up_bias), (weight, bias), up_first=up_first)
    assert (made.border is None) == (kind != "transposed")
    assert_exact(evaluate(made, small, skip), layers(up, small, skip, weight, bias, first=up_first))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("window", "padding", "output_padding"), [(4, 1, 0), (3, 1, 1), (2, 0, 0)])
def test_a_transposed_convolution_alone_is_its_phases(
    window: int, padding: int, output_padding: int, size: tuple[int, int]
) -> None:
    small, weight, bias = normal(2, 4, *size), normal(4, 5, window, window), normal(5)
    wanted = functional.conv_transpose2d(small, weight, bias, 2, padding, output_padding)
    made = transposed_alone(weight, bias, padding)
    assert_exact(evaluate(made, small), wanted)
    assert made.window_of_3 == (window == 3)


def test_a_convolution_without_bias_composes() -> None:
    small, weight = normal(1, 4, 3, 4), normal(5, 4, 3, 3)
    wanted = functional.conv2d(functional.interpolate(small, scale_factor=2), weight, padding=1)
    assert_exact(evaluate(compose_nearest((weight, None), 4), small), wanted)


def test_what_does_not_compose_is_refused() -> None:
    with pytest.raises(ValueError, match=r"window of \[5, 5\] with padding 2"):
        transposed_alone(normal(4, 4, 5, 5), None, 2)
    with pytest.raises(ValueError, match="reads 4 channels, and 6 are up-sampled"):
        compose_nearest((normal(4, 4, 3, 3), None), 6)


@pytest.mark.parametrize("per_channel", [False, True])
def test_weights_in_fp8_carry_both_maps_scales(per_channel: bool) -> None:
    made = compose_transposed((normal(32, 16, 2, 2), normal(16)), (normal(16, 32, 3, 3), normal(16)))
    small, skip = normal(2, 32, 5, 6), normal(2, 16, 10, 12) * 100
    scales = Scales(torch.linspace(0.01, 0.02, 32) if per_channel else 0.01, 1.0, 0.5)
    by_channel = scales.small[:, None, None] if isinstance(scales.small, Tensor) else scales.small
    packed = pack(made, torch.float8_e4m3fn, scales)
    stored = [value.permute(0, 2, 3, 1).to(torch.float8_e4m3fn) for value in (small / by_channel, skip)]
    out = torch.empty(2, 10, 12, 16)
    reference(packed.operands(stored[0], stored[1], NONE, Outputs(out)))
    wanted = evaluate(made, small, skip)
    error = (out.permute(0, 3, 1, 2).double() * scales.out - wanted).norm() / wanted.norm()
    assert 1e-3 < float(error) < 5e-2


def test_weights_in_fp16_are_the_composition_rounded_once() -> None:
    made = compose_transposed((normal(16, 16, 2, 2), normal(16)), (normal(16, 16, 3, 3), normal(16)))
    packed = pack(made, torch.float16)
    assert made.small is not None
    assert packed.small is not None
    assert torch.equal(packed.small, made.small.half())
    assert (packed.full, packed.scale) == (None, None)
    assert made.border is not None
    assert packed.border is not None
    torch.testing.assert_close(packed.border.double(), made.border)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn])
def test_a_stride_of_2_is_torch_s(dtype: torch.dtype) -> None:
    full, weight, bias = normal(2, 16, 8, 10), normal(16, 16, 3, 3), normal(16)
    wanted = functional.conv2d(full, weight, bias, stride=2, padding=1)
    made = strided_alone(weight, bias)
    assert_exact(evaluate(made, None, full), wanted)
    out = torch.empty(2, 4, 5, 16)
    packed = pack(made, dtype, Scales(full=0.5, out=0.25))
    stored = (full / 0.5).permute(0, 2, 3, 1).to(dtype)
    reference(packed.operands(None, stored, RELU, Outputs(out)))
    error = (out.permute(0, 3, 1, 2).double() * 0.25 - wanted.relu()).norm() / wanted.relu().norm()
    assert 1e-5 < float(error) < (1e-3 if dtype == torch.float16 else 6e-2)


def test_a_composition_keeps_its_parts_apart() -> None:
    weight = normal(4, 9, 3, 3)
    made: Composition = compose_nearest((weight, None), 6, up_first=False)
    assert made.full is not None
    assert torch.equal(made.full[5], weight[:, :3, 1, 2])
