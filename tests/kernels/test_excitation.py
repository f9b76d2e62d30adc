"""Squeeze-and-excitation's two kernels: the factors of a map's sums, and the product that multiplies by them."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels import conv1x1, norm_pass
from pipeline.kernels.common.activation import RELU, Activation
from pipeline.kernels.common.block_statistics import statistics_of
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import Ends, LibraryParameters, SecondSource
from tests.kernels.examples import DEVICE, HALF, assert_outputs_near, poisoned, values

SIZES = [(9, 17, 1, 24, 6), (16, 36, 2, 40, 10)]  # height, width, phases, channels, those of the narrow layer
LARGE = [(256, 256, 1, 32, 8), (16, 16, 1, 1152, 48), (8, 8, 1, 2304, 96)]


def layers(channels: int, inner: int, gate: str) -> norm_pass.Excitation:
    weights = [values(inner, channels) / channels**0.5, values(channels, inner).T.contiguous() / inner**0.5]
    biases = [values(length, dtype=torch.float32) for length in (inner, channels)]
    return norm_pass.Excitation(weights[0], biases[0], weights[1], biases[1], Activation("silu"), gate)


def check_factors(shape: tuple[int, int, int, int, int], gate: str) -> None:
    height, width, phases, channels, inner = shape
    counted = statistics_of(values(2, height, width, channels, dtype=torch.float32) + 1, phases)
    parts = layers(channels, inner, gate)
    found, again = (norm_pass.excitation(counted, (height, width), phases, parts) for _ in range(2))
    assert torch.equal(found, again)
    wanted = norm_pass.excitation_reference(counted, (height, width), phases, parts)
    torch.testing.assert_close(found.float(), wanted, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("shape", "gate"), [*zip(SIZES, norm_pass.GATES, strict=True)])
def test_the_factors_are_the_reference_s(shape: tuple[int, int, int, int, int], gate: str) -> None:
    check_factors(shape, gate)


@pytest.mark.parametrize("gate", norm_pass.GATES)
def test_the_reference_is_torch_s(gate: str) -> None:
    y, parts = values(2, 9, 17, 24, dtype=torch.float32), layers(24, 6, gate)
    hidden = functional.silu(functional.linear(y.mean((1, 2)), parts.reduce.float(), parts.reduce_bias))
    wanted = getattr(torch.nn.functional, gate)(functional.linear(hidden, parts.expand.float().T, parts.expand_bias))
    torch.testing.assert_close(
        norm_pass.excitation_reference(statistics_of(y), (9, 17), 1, parts), wanted, rtol=1e-4, atol=1e-5
    )


def test_what_is_refused_is_named() -> None:
    counted, parts = statistics_of(torch.zeros(1, 8, 16, 8)), norm_pass.Excitation(
        torch.zeros(2, 8), torch.zeros(2), torch.zeros(2, 8), torch.zeros(8), RELU, "sigmoid"
    )  # fmt: skip
    wide = torch.zeros(130, 8)
    refused: dict[str, dict[str, Any]] = {
        r"^reduce must be contiguous \[at most 128, 8\]": {"reduce": wide},
        r"^expand must be contiguous": {"expand": torch.zeros(3, 8)},
        r"^reduce_bias must be 2": {"reduce_bias": torch.zeros(3)},
        r"^expand_bias must be 8": {"expand_bias": torch.zeros(2)},
        r"^gate must be one of sigmoid, hardsigmoid, got tanh": {"gate": "tanh"},
    }
    for message, changed in refused.items():
        with pytest.raises(ValueError, match=message):
            norm_pass.excitation(counted, (8, 16), 1, parts._replace(**changed))
    with pytest.raises(ValueError, match=r"^statistics must be"):
        norm_pass.excitation(counted, (8, 17), 1, parts)


def gated(size: tuple[int, int, int], inner: int, outer: int) -> tuple[tuple[Any, ...], Outputs, Outputs]:
    """What the product reads, a slice of a wider map among it, and two places to store."""
    x = values(*size, 2 * inner)[..., inner:]
    weight, factors = values(outer, inner) / inner**0.5, torch.rand(size[0], 1, 1, inner, device=DEVICE).half()
    bias, residual = torch.linspace(-1, 1, outer, device=DEVICE), values(*size, outer)
    found, wanted = (Outputs(poisoned(*size, outer)) for _ in range(2))
    return (x, weight, Epilogue(bias=bias, activation=RELU, residual=residual), SecondSource(factors)), found, wanted


def check_gated(size: tuple[int, int, int], channels: tuple[int, int], tiles: list[conv1x1.Tile] | None = None) -> None:
    (x, weight, epilogue, second), found, wanted = gated(size, *channels)
    conv1x1.gated_reference(x, weight, epilogue, wanted, second)
    for tile in tiles or conv1x1.candidates(x, weight, epilogue):
        conv1x1.gated_conv1x1(x, weight, epilogue, found, second, tile)
        assert_outputs_near(found, wanted, HALF)


def test_each_image_is_multiplied_by_its_own_factors() -> None:
    check_gated((3, 5, 7), (24, 40), [conv1x1.Tile(16, 32, 16)])


def test_the_library_and_the_reference_multiply_as_torch_does() -> None:
    x, factors, weight, bias = (
        torch.randn(2, 8, 4, 3),
        torch.rand(2, 8, 1, 1),
        torch.randn(16, 8, 1, 1),
        torch.randn(16),
    )
    wanted = functional.conv2d(x * factors, weight, bias).relu()
    found = conv1x1.GATED_OP.library(x * factors, LibraryParameters(weight, bias), Ends(RELU))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    out, nhwc = torch.empty(2, 4, 3, 16), x.permute(0, 2, 3, 1)
    second, epilogue = SecondSource(factors.permute(0, 2, 3, 1)), Epilogue(bias=bias, activation=RELU)
    conv1x1.gated_reference(nhwc, weight.flatten(1), epilogue, Outputs(out), second)
    torch.testing.assert_close(out.permute(0, 3, 1, 2), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "wrong", [None, torch.zeros(2, 1, 1, 8).half(), torch.zeros(1, 1, 1, 8), torch.zeros(1, 8).half()]
)
def test_a_gate_of_another_shape_or_type_is_refused(wrong: Tensor | None) -> None:
    x, weight = torch.zeros(1, 4, 4, 8).half(), torch.zeros(8, 8).half()
    with pytest.raises(ValueError, match=r"^gate must be \[1, 1, 1, 8\], float16 as x"):
        conv1x1.gated_conv1x1(x, weight, Epilogue(bias=torch.zeros(8)), Outputs(x.clone()), SecondSource(wrong))


@pytest.mark.gpu
@pytest.mark.parametrize("gate", norm_pass.GATES)
@pytest.mark.parametrize("shape", [*SIZES, *LARGE])
def test_the_factors_are_right_at_every_size_of_a_net(shape: tuple[int, int, int, int, int], gate: str) -> None:
    check_factors(shape, gate)


@pytest.mark.gpu
@pytest.mark.parametrize("channels", [(96, 24), (144, 40), (1152, 192)])
def test_every_gated_tile_is_the_reference_s(channels: tuple[int, int]) -> None:
    check_gated((3, 33, 29), channels)
