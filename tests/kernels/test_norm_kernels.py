"""A norm's pass, and the 3×3 convolution that norms what it reads: references and the interpreter."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.kernels import conv1x1, conv3x3, norm_pass
from pipeline.kernels.common.activation import NONE, RELU, Activation
from pipeline.kernels.common.block_statistics import blocks_of, statistics_of
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.common.kernel_op import SecondSource
from pipeline.kernels.conv3x3 import conv3x3_narrow
from pipeline.kernels.conv3x3.conv3x3_triton import Operands
from pipeline.kernels.norm_pass import Norm, NormPass, Tile
from tests.kernels.examples import DEVICE, FP8, HALF, assert_near, assert_outputs_near, poisoned, values

LEAKY = Activation("leaky_relu", 0.1)


def head_of(classes: int, channels: int) -> Head:
    return Head(values(classes, channels, dtype=torch.float32), values(classes, dtype=torch.float32))


def normed(
    size: tuple[int, ...], phases: int = 1, ends: bool = True, group_width: int = 1
) -> tuple[Tensor, Tensor, NormPass]:
    """A map [N, H, W, C] far from zero in a part of the channels of a wider one, its statistics, and a norm of it."""
    batch, height, width, channels = size
    y = values(batch, height, width, channels, dtype=torch.float32) * 3 + 7 + torch.arange(channels, device=DEVICE) % 5
    wide = poisoned(batch, height, width, 2 * channels)
    wide[..., channels:] = y
    weight, bias = (values(channels, dtype=torch.float32) + part if ends else None for part in (1, 2))
    how = NormPass(Norm(weight, bias, 1e-5, group_width), LEAKY, phases=phases)
    return wide[..., channels:], statistics_of(y, phases), how


def stored(how: NormPass, x: Tensor, counted: Tensor, dtype: torch.dtype, tile: Tile | None) -> Tensor:
    """What a tile of the pass, or without one its reference, writes into a part of a wider map, and nothing beside."""
    wide = poisoned(*x.shape[:3], 2 * x.shape[3], dtype=dtype)
    out = wide[..., x.shape[3] :]
    if how.head is not None:
        out = torch.full((len(x), len(how.head.bias), *x.shape[1:3]), torch.nan, device=DEVICE)
    if tile is None:
        norm_pass.reference(x, counted, how, out)
    else:
        norm_pass.norm_pass(x, counted, how, out, tile)
    assert wide[..., : x.shape[3]].float().isnan().all()
    return out


@dataclass(frozen=True)
class After:
    """What comes after the sums of a convolution that norms what it reads: all that its operation lets through."""

    residual: torch.dtype | None = None
    statistics: bool = True
    activation: Activation = NONE


PLAIN_END = After()
# Each residual with and without sums, and each end that the layer after a norm may have.
AFTER = [
    *(After(residual, statistics) for residual in (None, HALF, FP8) for statistics in (True, False)),
    After(None, True, Activation("silu")),
    After(None, False, RELU),
    After(HALF, False, Activation("leaky_relu", 0.1)),
    After(FP8, True, Activation("gelu")),
]


def convolution(
    size: tuple[int, ...], outer: int, group_width: int = 1, after: After = PLAIN_END
) -> tuple[Operands, Tensor, NormPass]:
    x, counted, how = normed(size, group_width=group_width)
    residual = None if after.residual is None else values(*size[:3], 2 * outer, dtype=after.residual)[..., outer:]
    epilogue = Epilogue(
        bias=values(outer, dtype=torch.float32),
        activation=after.activation,
        residual=residual,
        residual_scale=0.5 if after.residual == FP8 else 1.0,
        statistics=after.statistics,
    )
    whole = torch.full((size[0], blocks_of(*size[1:3]), 2, outer), torch.nan, device=DEVICE)
    outputs = Outputs(poisoned(*size[:3], outer), statistics=whole if after.statistics else None)
    return Operands(x, values(9, outer, size[3]) * 0.1, epilogue, outputs), counted, how


# Channels and a group's, phases, the type that is stored, and what the pass ends in: at a size that fills no tile, by
# programs that take two steps and ones that take less; of a program's channels several groups or one. A scale to fp8
# passes through an activation or comes after it.
PASSES = [
    *(
        (width, channels, 2, HALF, LEAKY)
        for width, channels in ((1, 24), (2, 24), (4, 24), (8, 24), (16, 48), (64, 128))
    ),
    (1, 24, 2, FP8, LEAKY),
    *((8, 24, 1, FP8, activation) for activation in (NONE, RELU)),
    *((4, 24, 1, dtype, end) for dtype in (HALF, FP8) for end in (Activation("silu"), Activation("elu", 0.5))),
]


@pytest.mark.parametrize("merges", [True, False])
@pytest.mark.parametrize(("group_width", "channels", "phases", "dtype", "activation"), PASSES, ids=str)
def test_the_pass_writes_what_its_reference_writes(
    group_width: int, channels: int, phases: int, dtype: torch.dtype, activation: Activation, merges: bool
) -> None:
    x, counted, how = normed((2, 10, 34, channels), phases=phases, group_width=group_width)
    how = replace(how, activation=activation, scale=0.02 if dtype == FP8 else 1.0)
    found, wanted = (stored(how, x, counted, dtype, tile) for tile in (Tile(4096, 2, merges), None))
    assert_near(found, wanted, dtype)


@pytest.mark.parametrize("merges", [True, False])
@pytest.mark.parametrize(("classes", "channels", "group_width"), [(1, 24, 1), (3, 32, 4), (8, 64, 16)])
def test_the_pass_makes_a_head_s_logits(classes: int, channels: int, group_width: int, merges: bool) -> None:
    x, counted, how = normed((2, 10, 34, channels), phases=2, group_width=group_width)
    how = replace(how, head=head_of(classes, channels))
    found, wanted = (stored(how, x, counted, HALF, tile) for tile in (Tile(4096, 2, merges), None))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    between = stored(replace(how, head=None), x, counted, HALF, None).float().permute(0, 3, 1, 2)
    logits = functional.conv2d(between, how.head.weight[:, :, None, None], how.head.bias)
    assert float((wanted - logits).norm() / logits.norm()) < 1e-3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"x": torch.zeros(1, 8, 16, 8)}, r"^x must be \[1, 8, 16, 8\] float16 or"),
        ({"out": torch.zeros(1, 8, 16, 16).half()}, r"^out must be \[1, 8, 16, 8\]"),
        ({"out": torch.zeros(1, 8, 8, 16).half().transpose(2, 3)}, "^out must have its channels side by side"),
        ({"statistics": torch.zeros(1, 2, 2, 8)}, "^statistics must be"),
        ({"how": NormPass(Norm(torch.zeros(4), eps=1e-5))}, r"^weight must be \[8\]"),
        ({"how": NormPass(Norm(eps=1e-5), Activation("prelu"))}, "^activation must be .* got prelu and 1e-05$"),
        ({"how": NormPass(Norm())}, "^activation must be .*, after a norm with eps, got none"),
        *(
            ({"how": NormPass(Norm(eps=1e-5, group_width=width))}, rf"^group_width must be .* divides 8, got {width}$")
            for width in (-8, -1, 0, 3, 16, 128, 2**40)
        ),
        (
            {"how": NormPass(Norm(eps=1e-5), head=head_of(9, 8))},
            "^head must have at most 8 classes of 64 channels.* 9 of",
        ),
        (
            {"how": NormPass(Norm(eps=1e-5), scale=0.5, head=head_of(2, 8))},
            "^head must .* no scale, got 2 of 8 and 0.5$",
        ),
        ({"how": NormPass(Norm(eps=1e-5), head=head_of(2, 4))}, r"^head's weight must be \[2, 8\]"),
        ({"how": NormPass(Norm(eps=1e-5), head=head_of(2, 8))}, r"^out must be \[1, 2, 8, 16\] contiguous float32"),
    ],
)
def test_what_the_pass_cannot_take_is_named(wrong: dict[str, Any], message: str) -> None:
    x = torch.zeros(1, 8, 16, 8).half()
    given: dict[str, Any] = {"x": x, "statistics": torch.zeros(1, 1, 2, 8), "out": x.clone()}
    given |= {"how": NormPass(Norm(eps=1e-5)), **wrong}
    with pytest.raises(ValueError, match=message):
        norm_pass.norm_pass(*(given[name] for name in ("x", "statistics", "how", "out")))


@pytest.mark.parametrize("after", AFTER, ids=str)
def test_the_convolution_s_reference_ends_in_all_that_it_may(after: After) -> None:
    operands, counted, how = convolution((1, 9, 20, 16), 8, after=after)
    conv3x3.normed_reference(operands, counted, how)
    epilogue, outputs = operands.epilogue, operands.outputs
    before = stored(how, operands.x, counted, HALF, None)
    taps = operands.weight.float().reshape(3, 3, 8, 16).permute(2, 3, 0, 1)
    sums = functional.conv2d(before.permute(0, 3, 1, 2).float(), taps, padding=1).permute(0, 2, 3, 1) + epilogue.bias
    if epilogue.residual is not None:
        sums = sums + epilogue.residual.float() * (0.5 if after.residual == FP8 else 1.0)
    wanted = after.activation(sums)
    torch.testing.assert_close(outputs.out.float(), wanted, rtol=4e-3, atol=4e-3)
    assert (outputs.statistics is not None) == after.statistics
    if outputs.statistics is not None:
        torch.testing.assert_close(outputs.statistics, statistics_of(wanted), rtol=1e-2, atol=0.1)


@pytest.mark.parametrize(
    ("activation", "slope"),
    [(NONE, 1.0), (RELU, 0.0), (LEAKY, 0.1), (Activation("leaky_relu", 2.0), None), (Activation("silu"), None)],
)
def test_the_larger_of_a_value_and_its_slope_is_the_activation(activation: Activation, slope: float | None) -> None:
    y = torch.linspace(-2, 2, 9)
    assert conv3x3.slope_of(activation) == slope
    if slope is not None:
        assert torch.equal(torch.maximum(y, slope * y), activation(y))


NO_FIT = r"^x must be float16, after a norm with eps and a ReLU"
NO_GROUPS = r"^group_width must be a power of two up to 64 .* 16, got"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"activation": Activation("silu")}, NO_FIT),
        ({"scale": 0.5}, NO_FIT),
        ({"norm": Norm()}, NO_FIT),
        *(({"norm": Norm(eps=1e-5, group_width=width)}, f"{NO_GROUPS} {width}$") for width in (0, 3, 32)),
    ],
)
def test_the_convolution_takes_no_other_norm(wrong: dict[str, Any], message: str) -> None:
    operands, counted, how = convolution((1, 8, 16, 16), 8)
    with pytest.raises(ValueError, match=message):
        conv3x3.normed_conv3x3(operands, counted, replace(how, **wrong), conv3x3_narrow.Tile(16))


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


def test_what_is_refused_is_named() -> None:
    counted, parts = statistics_of(torch.zeros(1, 8, 16, 8)), norm_pass.Excitation(
        torch.zeros(2, 8), torch.zeros(2), torch.zeros(2, 8), torch.zeros(8), RELU, "sigmoid"
    )  # fmt: skip
    wide = torch.zeros(130, 8)
    refused: dict[str, dict[str, Any]] = {
        r"^reduce must be contiguous \[at most 128, 8\]": {"reduce": wide},
        r"^expand must be contiguous": {"expand": torch.zeros(3, 8)},
        r"^reduce_bias must be \[2\]": {"reduce_bias": torch.zeros(3)},
        r"^expand_bias must be \[8\]": {"expand_bias": torch.zeros(2)},
        r"^gate must be one of sigmoid, hardsigmoid, got tanh": {"gate": "tanh"},
    }
    for message, changed in refused.items():
        with pytest.raises(ValueError, match=message):
            norm_pass.excitation(counted, (8, 16), 1, parts._replace(**changed))
    with pytest.raises(ValueError, match=r"^statistics must be"):
        norm_pass.excitation(counted, (8, 17), 1, parts)


def check_gated(size: tuple[int, int, int], channels: tuple[int, int], tiles: list[conv1x1.Tile] | None = None) -> None:
    """Of a slice of a wider map, with a residual."""
    inner, outer = channels
    x, weight = values(*size, 2 * inner)[..., inner:], values(outer, inner) / inner**0.5
    second = SecondSource(torch.rand(size[0], 1, 1, inner, device=DEVICE).half())
    bias = torch.linspace(-1, 1, outer, device=DEVICE)
    epilogue = Epilogue(bias=bias, activation=RELU, residual=values(*size, outer))
    found, wanted = (Outputs(poisoned(*size, outer)) for _ in range(2))
    conv1x1.gated_reference(x, weight, epilogue, wanted, second)
    for tile in tiles or conv1x1.candidates(x, weight, epilogue):
        conv1x1.gated_conv1x1(x, weight, epilogue, found, second, tile)
        assert_outputs_near(found, wanted, HALF)


def test_each_image_is_multiplied_by_its_own_factors() -> None:
    check_gated((3, 5, 7), (24, 40), [conv1x1.Tile(16, 32, 16)])


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
