"""Residual and statistics on a GPU: every tile of every kernel that has them against its reference."""

from dataclasses import replace

import pytest
import torch

from pipeline.kernels.common.activation import NONE, Activation
from pipeline.kernels.common.kernel_op import KernelOp
from tests.kernels.examples import FP8, HALF, PLAIN, TYPES, Layer, check_all, example, for_kernel
from tests.kernels.test_gpu_kernels import MANY, ODD, what_the_gpu_has

__all__ = ["what_the_gpu_has"]  # a fixture, which every test here asks for by itself
pytestmark = pytest.mark.gpu

PRELU = Activation("prelu")
PARTS = {
    "residual": Layer(residual=HALF),
    "residual in fp8": Layer(residual=FP8),
    "statistics": Layer(statistics=True, activation=NONE),
    "all": Layer(activation=PRELU, statistics=True, residual=HALF, pool=True),
}


@pytest.mark.parametrize(("dtype", "stored"), TYPES)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("op", [op for op in PLAIN if "residual" in op.folds], ids=lambda op: op.name)
def test_every_tile_does_what_the_reference_does(
    op: KernelOp, part: str, dtype: torch.dtype, stored: torch.dtype
) -> None:
    """At odd sizes, and with so many tiles that every program gets several; the same bits in two runs."""
    ended = replace(PARTS[part], stored_as=stored)
    layers = [replace(ended, batch=one.batch, size=one.size, inner=one.inner, outer=one.outer) for one in (ODD, MANY)]
    made = [example(op, dtype, for_kernel(op, layer)) for layer in layers]
    check_all([(one, tile) for one in made for tile in one.candidates()])


@pytest.mark.parametrize(("dtype", "stored"), TYPES)
@pytest.mark.parametrize("outer", [16, 32, 64])
@pytest.mark.parametrize("op", [op for op in PLAIN if "statistics" in op.folds], ids=lambda op: op.name)
def test_every_tile_sums_as_the_reference_does(
    op: KernelOp, outer: int, dtype: torch.dtype, stored: torch.dtype
) -> None:
    """Also those for few channels, at sizes that no block divides."""
    layer = Layer(inner=32, outer=outer, activation=NONE, statistics=True, stored_as=stored)
    layers = [replace(layer, batch=2, size=(13, 18)), replace(layer, batch=3, size=(200, 173))]
    made = [example(op, dtype, for_kernel(op, one)) for one in layers]
    check_all([(one, tile) for one in made for tile in one.candidates()])
