"""On a GPU a norm's pass, and the 3×3 convolution that norms what it reads, answer as their references do."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pipeline.kernels import conv3x3, norm_pass
from pipeline.kernels.common.activation import NONE, RELU, Activation
from pipeline.kernels.common.capability import gluon_barred, supported
from pipeline.kernels.conv3x3 import conv3x3_narrow
from pipeline.kernels.conv3x3.conv3x3_triton import Operands
from pipeline.kernels.norm_pass import NormPass
from tests.kernels.examples import FP8, HALF, assert_near
from tests.kernels.norm_examples import AFTER, LEAKY, After, convolution, head_of, normed, stored
from tests.kernels.test_gpu_kernels import what_the_gpu_has

__all__ = ["what_the_gpu_has"]  # a fixture, which every test here asks for by itself
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize("size", [(3, 26, 34, 24), (2, 64, 64, 256), (2, 200, 174, 80)])
def test_every_tile_of_the_pass_on_a_gpu(size: tuple[int, ...], dtype: torch.dtype) -> None:
    """The same bits in two runs."""
    x, counted, how = normed(size, phases=2)
    how = replace(how, scale=0.02 if dtype == FP8 else 1.0)
    check_pass(x, counted, how, dtype)


@pytest.mark.parametrize(("classes", "group_width"), [(1, 1), (3, 4), (8, 1)])
@pytest.mark.parametrize("size", [(3, 26, 34, 24), (2, 200, 174, 32), (1, 512, 512, 64)])
def test_every_tile_of_the_pass_makes_logits_on_a_gpu(size: tuple[int, ...], classes: int, group_width: int) -> None:
    """By themselves, and where the statistics are merged first; the same bits in two runs."""
    x, counted, how = normed(size, group_width=group_width)
    check_pass(x, counted, replace(how, head=head_of(classes, size[-1])), HALF)


@pytest.mark.parametrize("activation", [NONE, RELU, LEAKY, Activation("silu"), Activation("elu", 0.5)], ids=str)
@pytest.mark.parametrize("group_width", [1, 4, 32])
@pytest.mark.parametrize("dtype", [FP8])
def test_tiles_of_a_pass_round_groups_to_fp8_on_gpus(
    group_width: int, activation: Activation, dtype: torch.dtype
) -> None:
    """A scale passes through an activation, or comes after it."""
    x, counted, how = normed((3, 26, 34, 64), group_width=group_width)
    how = replace(how, activation=activation, scale=0.02)
    check_pass(x, counted, how, dtype)


@pytest.mark.parametrize(
    ("activation", "dtype"),
    [(LEAKY, HALF), (Activation("silu"), HALF), (Activation("silu"), FP8)],
    ids=["leaky_relu", "silu", "silu into fp8"],
)
@pytest.mark.parametrize("group_width", [2, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("size", [(3, 26, 34, 64), (2, 200, 174, 192), (1, 768, 768, 64)])
def test_every_tile_of_the_pass_norms_groups_on_a_gpu(
    size: tuple[int, ...], group_width: int, activation: Activation, dtype: torch.dtype
) -> None:
    """The last map in bands where the groups are wide; the same bits in two runs."""
    x, counted, how = normed(size, group_width=group_width)
    how = replace(how, activation=activation, scale=0.02 if dtype == FP8 else 1.0)
    check_pass(x, counted, how, dtype)


@pytest.mark.parametrize(
    ("inner", "outer", "group_width"), [(32, 32, 1), (24, 16, 1), (64, 8, 1), (32, 32, 4), (64, 8, 16), (16, 16, 2)]
)
@pytest.mark.parametrize("activation", [NONE, RELU, LEAKY], ids=str)
@pytest.mark.parametrize("after", [After(), After(HALF)], ids=str)
def test_a_convolution_norms_on_gpus(
    after: After, activation: Activation, inner: int, outer: int, group_width: int
) -> None:
    """By every tile that the tuner would try, at a size that no block divides; the same bits in two runs."""
    check_every_tile(after, activation, (inner, outer), group_width)


@pytest.mark.parametrize(("inner", "outer"), [(32, 32), (64, 8)])
@pytest.mark.parametrize("after", AFTER, ids=str)
def test_the_convolution_that_norms_ends_in_all_that_it_may_on_a_gpu(after: After, inner: int, outer: int) -> None:
    """Without sums, with its own activation, with a residual in fp8, of which 16 channels are the fewest."""
    if after.residual == FP8 and (reason := supported(torch.cuda.get_device_capability(), FP8)):
        pytest.skip(reason)
    check_every_tile(after, LEAKY, (inner, max(outer, 16) if after.residual == FP8 else outer), 4)


def check_every_tile(after: After, activation: Activation, channels: tuple[int, int], group_width: int) -> None:
    if reason := gluon_barred():
        pytest.skip(reason)
    inner, outer = channels
    operands, counted, how = convolution((2, 77, 90, inner), outer, group_width, after)
    how = replace(how, activation=activation)
    wanted = [part.clone() for part in run(operands, counted, how, None)]
    for tile in conv3x3_narrow.candidates(operands.x, outer, ends=bool(operands.epilogue.parts)):
        first = [part.clone() for part in run(operands, counted, how, tile)]
        again = run(operands, counted, how, tile)
        for one, other, want in zip(first, again, wanted, strict=True):
            assert torch.equal(one, other)
            assert float((one.float() - want.float()).norm() / want.float().norm()) < 4e-3


def check_pass(x: Tensor, counted: Tensor, how: NormPass, dtype: torch.dtype) -> None:
    wanted = stored(how, x, counted, dtype, None)
    for tile in norm_pass.candidates(counted):
        first, again = (stored(how, x, counted, dtype, tile) for _ in range(2))
        assert_near(first, wanted, dtype)
        assert torch.equal(first.float(), again.float())


def run(operands: Operands, counted: Tensor, how: NormPass, tile: conv3x3_narrow.Tile | None) -> list[Tensor]:
    """The output and its statistics by a tile, or by the reference, over outputs of NaN."""
    parts = [part for part in operands.outputs.given.values() if part.fill_(torch.nan) is not None]
    if tile is None:
        conv3x3.normed_reference(operands, counted, how)
    else:
        conv3x3.normed_conv3x3(operands, counted, how, tile)
    return parts
