"""A norm's pass, and the 3×3 convolution that norms what it reads: references and the interpreter."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from pipeline.kernels import conv3x3, norm_pass
from pipeline.kernels.common.activation import NONE, RELU, Activation
from pipeline.kernels.common.block_statistics import statistics_of
from pipeline.kernels.conv3x3 import conv3x3_narrow
from pipeline.kernels.norm_pass import Norm, NormPass, Tile
from tests.kernels.examples import FP8, HALF, assert_near
from tests.kernels.norm_examples import AFTER, LEAKY, After, convolution, head_of, normed, stored

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
    """In fp32, of what it would have stored; and the reference is torch's own convolution."""
    x, counted, how = normed((2, 10, 34, channels), phases=2, group_width=group_width)
    how = replace(how, head=head_of(classes, channels))
    assert how.head is not None
    found, wanted = (stored(how, x, counted, HALF, tile) for tile in (Tile(4096, 2, merges), None))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    between = stored(replace(how, head=None), x, counted, HALF, None).float().permute(0, 3, 1, 2)
    logits = functional.conv2d(between, how.head.weight[:, :, None, None], how.head.bias)
    assert float((wanted - logits).norm() / logits.norm()) < 1e-3


@pytest.mark.parametrize("group_width", [2, 3, 8])
def test_the_reference_is_torchs_group_norm(group_width: int) -> None:
    x, counted, how = normed((2, 9, 20, 24), group_width=group_width)
    wanted = functional.group_norm(x.permute(0, 3, 1, 2).float(), 24 // group_width, how.norm.weight, how.norm.bias)
    found = stored(replace(how, activation=Activation("silu")), x, counted, HALF, None)
    torch.testing.assert_close(found.float(), functional.silu(wanted).permute(0, 2, 3, 1), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("ends", [True, False], ids=["weight and bias", "neither"])
def test_the_reference_is_torchs_norm(ends: bool) -> None:
    x, counted, how = normed((2, 9, 20, 8), ends=ends)
    wanted = functional.instance_norm(x.permute(0, 3, 1, 2).float(), weight=how.norm.weight, bias=how.norm.bias)
    wanted = functional.leaky_relu(wanted, 0.1).permute(0, 2, 3, 1)
    found = stored(replace(how, scale=0.5), x, counted, HALF, None)
    torch.testing.assert_close(found.float() * 0.5, wanted, rtol=4e-3, atol=4e-3)


def test_every_size_has_a_tile_and_small_maps_one_that_merges() -> None:
    small, large = (list(norm_pass.candidates(torch.empty(1, blocks, 2, 8))) for blocks in (64, 65))
    assert {tile.merges for tile in small} == {True, False}
    assert {tile.merges for tile in large} == {False}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"x": torch.zeros(1, 8, 16, 8)}, r"^x must be \[1, 8, 16, 8\] float16 or"),
        ({"out": torch.zeros(1, 8, 16, 16).half()}, r"^out must be \[1, 8, 16, 8\]"),
        ({"out": torch.zeros(1, 8, 8, 16).half().transpose(2, 3)}, "^out must have its channels side by side"),
        ({"statistics": torch.zeros(1, 2, 2, 8)}, "^statistics must be"),
        ({"how": NormPass(Norm(torch.zeros(4), eps=1e-5))}, "^weight must be 8"),
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


@pytest.mark.parametrize("group_width", [1, 4])
def test_the_convolution_s_reference_reads_what_the_norm_gives(group_width: int) -> None:
    operands, counted, how = convolution((1, 9, 20, 16), 8, group_width)
    conv3x3.normed_reference(operands, counted, how)
    x, norm = operands.x.permute(0, 3, 1, 2).float(), how.norm
    before = functional.group_norm(x, 16 // group_width, norm.weight, norm.bias)
    taps = operands.weight.float().reshape(3, 3, 8, 16).permute(2, 3, 0, 1)
    wanted = functional.conv2d(functional.leaky_relu(before, 0.1), taps, operands.epilogue.bias, padding=1)
    assert operands.outputs.out is not None
    found = operands.outputs.out.permute(0, 3, 1, 2).float()
    assert float((found - wanted).norm() / wanted.norm()) < 2e-3


@pytest.mark.parametrize("after", AFTER, ids=str)
def test_the_convolution_s_reference_ends_in_all_that_it_may(after: After) -> None:
    """Without sums, with its own activation, with a residual in fp8, whose unit isn't worth 1."""
    operands, counted, how = convolution((1, 9, 20, 16), 8, after=after)
    conv3x3.normed_reference(operands, counted, how)
    epilogue, outputs = operands.epilogue, operands.outputs
    assert epilogue.bias is not None
    before = stored(how, operands.x, counted, HALF, None)
    taps = operands.weight.float().reshape(3, 3, 8, 16).permute(2, 3, 0, 1)
    sums = functional.conv2d(before.permute(0, 3, 1, 2).float(), taps, padding=1).permute(0, 2, 3, 1) + epilogue.bias
    if epilogue.residual is not None:
        sums = sums + epilogue.residual.float() * (0.5 if after.residual == FP8 else 1.0)
    wanted = after.activation(sums)
    assert outputs.out is not None
    torch.testing.assert_close(outputs.out.float(), wanted, rtol=4e-3, atol=4e-3)
    assert (outputs.statistics is not None) == after.statistics
    if outputs.statistics is not None:
        torch.testing.assert_close(outputs.statistics, statistics_of(wanted), rtol=1e-2, atol=0.1)


@pytest.mark.parametrize(
    ("activation", "slope"),
    [(NONE, 1.0), (RELU, 0.0), (LEAKY, 0.1), (Activation("leaky_relu", 2.0), None), (Activation("silu"), None)],
)
def test_the_larger_of_a_value_and_a_slope_times_it_is_the_activation(
    activation: Activation, slope: float | None
) -> None:
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
