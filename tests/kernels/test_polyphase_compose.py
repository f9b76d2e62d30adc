"""Composed weights are the layers that they stand for: float64 equality, the border on its own, odd sizes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.polyphase.polyphase_compose import (
    Composition,
    Scales,
    compose_nearest,
    compose_transposed,
    pack,
    phase_taps,
)
from pipeline.kernels.polyphase.polyphase_operands import Operands, at_border, phases_of, reference

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


def evaluate(made: Composition, small: Tensor, full: Tensor | None = None) -> Tensor:
    """A composition in its own precision, of small [N, in, h, w] and full [N, skip, 2 h, 2 w]."""
    y = phases_of(small, made.small) + made.bias[:, None, None]
    if full is not None and made.full is not None:
        y = y + functional.conv2d(full, made.full.permute(1, 2, 0).unflatten(2, (3, 3)), padding=1)
    return y if made.border is None else y + at_border(made.border, *y.shape[2:])


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("skip_channels", [0, 3])
@pytest.mark.parametrize("kind", ["transposed", "transposed, no bias", "nearest"])
def test_a_composition_is_the_layers_it_stands_for(kind: str, skip_channels: int, size: tuple[int, int]) -> None:
    height, width = size
    inner, middle, outer = 6, 6 if kind == "nearest" else 4, 5
    small = normal(3, inner, height, width)
    skip = normal(3, skip_channels, 2 * height, 2 * width) if skip_channels else None
    weight, bias = normal(outer, middle + skip_channels, 3, 3), normal(outer)
    up: Upsample
    if kind == "nearest":
        up = lambda x: functional.interpolate(x, scale_factor=2, mode="nearest")  # noqa: E731
        made = compose_nearest((weight, bias), inner)
    else:
        up_weight, up_bias = normal(inner, middle, 2, 2), normal(middle) if kind == "transposed" else None
        up = lambda x: functional.conv_transpose2d(x, up_weight, up_bias, stride=2)  # noqa: E731
        made = compose_transposed((up_weight, up_bias), (weight, bias))
    assert (made.border is None) == (kind != "transposed")
    both = torch.cat([up(small)] if skip is None else [skip, up(small)], 1)
    assert_exact(evaluate(made, small, skip), functional.conv2d(both, weight, bias, padding=1))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("window", "output_padding"), [(4, 0), (3, 1)])
def test_a_transposed_convolution_alone_is_its_phases(window: int, output_padding: int, size: tuple[int, int]) -> None:
    small, weight = normal(2, 4, *size), normal(4, 5, window, window)
    wanted = functional.conv_transpose2d(small, weight, None, 2, 1, output_padding)
    assert_exact(phases_of(small, phase_taps(weight)), wanted)


def test_a_convolution_without_bias_composes() -> None:
    small, weight = normal(1, 4, 3, 4), normal(5, 4, 3, 3)
    wanted = functional.conv2d(functional.interpolate(small, scale_factor=2), weight, padding=1)
    assert_exact(evaluate(compose_nearest((weight, None), 4), small), wanted)


def test_what_does_not_compose_is_refused() -> None:
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
    out, epilogue = torch.empty(2, 10, 12, 16), Epilogue(packed.scale, packed.bias)
    reference(Operands(epilogue, Outputs(out), stored[0], packed.small, stored[1], packed.full, packed.border))
    wanted = evaluate(made, small, skip)
    error = (out.permute(0, 3, 1, 2).double() * scales.out - wanted).norm() / wanted.norm()
    assert 1e-3 < float(error) < 5e-2


def test_weights_in_fp16_are_the_composition_rounded_once() -> None:
    made = compose_transposed((normal(16, 16, 2, 2), normal(16)), (normal(16, 16, 3, 3), normal(16)))
    packed = pack(made, torch.float16)
    assert torch.equal(packed.small, made.small.half())
    assert (packed.full, packed.scale) == (None, None)
    assert made.border is not None
    assert packed.border is not None
    torch.testing.assert_close(packed.border.double(), made.border)


def test_a_composition_keeps_its_parts_apart() -> None:
    weight = normal(4, 9, 3, 3)
    made: Composition = compose_nearest((weight, None), 6)
    assert made.full is not None
    assert torch.equal(made.full[5], weight[:, :3, 1, 2])
