"""On a GPU the kernels of volumes, and of taps that lie apart, answer by every tile as their references do."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from pipeline.compiler.tuning.autotune import build_side_by_side
from pipeline.kernels import conv3x3, conv_first, upconv2x2
from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.kernel_op import KernelOp
from pipeline.kernels.polyphase import candidates, polyphase
from tests.kernels.examples import FP8, HALF, TYPES, Layer, Phases, check, check_all, example, for_kernel, operands
from tests.kernels.kinds import of_two_slices
from tests.kernels.test_gpu_kernels import DTYPES, what_the_gpu_has
from tests.kernels.test_volume_kernels import SLICED

__all__ = ["what_the_gpu_has"]  # a fixture, which every test here asks for by itself
pytestmark = pytest.mark.gpu

LEAKY = Activation("leaky_relu", 0.1)
# Channels and columns that fill no tile; then tiles enough that every program gets several.
LAYERS = [
    pytest.param(Layer(2, (24, 17), 48, 80, slices=3, activation=LEAKY, residual=HALF), id="odd"),
    pytest.param(Layer(2, (20, 22), 48, 80, slices=3, residual=HALF), id="slices that end within a tile"),
    pytest.param(Layer(2, (40, 72), 64, 64, slices=10, statistics=True), id="many tiles"),
    pytest.param(Layer(3, (64, 48), 320, 128, slices=4, statistics=True, activation=Activation("prelu")), id="wide"),
]
FEW = [
    pytest.param(Layer(2, (24, 17), 48, 16, slices=4, activation=LEAKY), id="odd"),
    pytest.param(Layer(2, (20, 22), 48, 24, slices=4), id="slices that end within a tile"),
    pytest.param(Layer(2, (40, 72), 32, 32, slices=12, statistics=True), id="many tiles"),
    pytest.param(Layer(1, (128, 128), 64, 32, slices=10, statistics=True, activation=Activation("prelu")), id="wide"),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", LAYERS)
def test_a_volume_s_convolution_on_a_gpu(layer: Layer, dtype: torch.dtype) -> None:
    layer = replace(layer, residual=dtype if layer.residual else None)
    made = example(conv3x3.VOLUME_OP, dtype, layer)
    check_all([(made, tile) for tile in made.candidates()])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", FEW)
def test_two_slices_at_a_time_on_a_gpu(layer: Layer, dtype: torch.dtype) -> None:
    """Also stored in the other type, where fp8 is read."""
    if reason := reaching_views_barred():
        pytest.skip(reason)
    if dtype == FP8:  # in a buffer of others', channels begin at multiples of 16 bytes
        layer = replace(layer, outer=-(-layer.outer // 16) * 16)
    for stored in {dtype, HALF}:
        made = of_two_slices(example(conv3x3.VOLUME_OP, dtype, replace(layer, stored_as=stored)))
        check_all([(made, tile) for tile in made.candidates()])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(8, 17), (32, 40)])
def test_a_volume_s_up_sampling_on_a_gpu(size: tuple[int, int], dtype: torch.dtype) -> None:
    made = example(upconv2x2.VOLUME_OP, dtype, Layer(2, size, 48, 80, slices=7, activation=LEAKY))
    check_all([(made, tile) for tile in made.candidates()])


@pytest.mark.parametrize(("dtype", "stored"), TYPES)
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Phases(2, (8, 17), 0, 48, 80, slices=4, activation=LEAKY), id="odd"),
        pytest.param(Phases(2, (32, 40), 0, 64, 64, counts=True, slices=12), id="many tiles"),
        pytest.param(Phases(3, (32, 24), 0, 256, 128, counts=True, slices=6), id="wide"),
        pytest.param(Phases(2, (8, 17), 0, 48, 80, slices=3, step=1, activation=LEAKY), id="within slices, odd"),
        pytest.param(Phases(2, (32, 40), 0, 32, 64, counts=True, slices=7, step=1), id="within slices, many tiles"),
    ],
)
def test_a_volume_s_strided_convolution_on_a_gpu(case: Phases, dtype: torch.dtype, stored: torch.dtype) -> None:
    made, buffer = operands(case, dtype, stored)
    tiles = list(candidates(made))
    build_side_by_side(partial(polyphase, made, tile) for tile in tiles)
    for tile in tiles:
        check(made, buffer, tile)


@pytest.mark.parametrize("inner", [1, 4])
def test_the_first_convolution_of_volumes_on_a_gpu(inner: int) -> None:
    made = example(conv_first.VOLUME_OP, HALF, Layer(2, (40, 33), inner, 32, slices=5, statistics=True))
    check_all([(made, tile) for tile in made.candidates()])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(16, 17), (32, 72)])
@pytest.mark.parametrize("op", SLICED, ids=lambda op: op.name)
def test_a_window_of_one_slice_on_a_gpu(op: KernelOp, size: tuple[int, int], dtype: torch.dtype) -> None:
    size = (size[0], size[1] + size[1] % 2) if op.growth < 1 else size
    layer = for_kernel(op, Layer(2, size, 48, 80, slices=5, residual=dtype, statistics=True, stored_as=HALF))
    made = example(op, dtype, layer)
    check_all([(made, tile) for tile in made.candidates()])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dilation", [2, 12, 100])
def test_a_window_whose_taps_lie_apart_on_a_gpu(dilation: int, dtype: torch.dtype) -> None:
    layer = Layer(3, (40, 73), 64, 144, residual=dtype, statistics=True, stored_as=HALF, dilation=dilation)
    made = example(conv3x3.DILATED_OP, dtype, layer)
    check_all([(made, tile) for tile in made.candidates()])
