"""Depthwise convolutions of every window and stride: in Triton's interpreter, or every tile on a GPU."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional

from pipeline.kernels import depthwise
from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.block_statistics import blocks_of
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import Ends, LayerDescription
from tests.kernels.examples import DEVICE, HALF, Example, assert_torch_s, check_all, gpu_for, poisoned, taken, values

SILU = Activation("silu")


def windowed(side: int, stride: int, size: tuple[int, int] = (9, 19), channels: int = 24, batch: int = 2) -> Example:
    """A layer that reads a part of the channels of a wider map, with statistics of an odd size."""
    x = values(batch, *size, 2 * channels)[..., channels:]
    weight = depthwise.pack(values(channels, 1, side, side, dtype=torch.float32) / side).half()
    height, width = (-(-length // stride) for length in size)
    wide = poisoned(batch, height, width, 2 * channels)
    counted = poisoned(batch, blocks_of(height, width), 2, channels, dtype=torch.float32)
    bias = torch.linspace(-1, 1, channels, device=DEVICE)
    epilogue = Epilogue(bias=bias, activation=SILU, statistics=True)
    op = depthwise.OP if stride == 1 else depthwise.STRIDED_OP
    outputs = Outputs(wide[..., channels:], statistics=counted)
    return Example(op, x, weight, epilogue, outputs, [wide, counted], HALF)


@pytest.mark.parametrize(("side", "stride"), [(3, 1), (5, 2)])
def test_a_window_is_the_reference_s(side: int, stride: int) -> None:
    made = windowed(side, stride, (9, 19) if stride == 1 else (7, 18), 16, 1)
    made.run(depthwise.Tile(8, 16, 1))
    made.check()


def dilated(side: int, apart: int, size: tuple[int, int], channels: int = 24, batch: int = 2) -> Example:
    made = windowed(side, 1, size, channels, batch)
    epilogue = replace(made.epilogue, statistics=False, dilation=apart)
    return replace(made, op=depthwise.DILATED_OP, epilogue=epilogue, outputs=Outputs(made.outputs.out))


@pytest.mark.parametrize(("side", "apart"), [(3, 2), (3, 5), (5, 3), (3, 12)])
def test_a_window_whose_taps_lie_apart_is_the_reference_s(side: int, apart: int) -> None:
    made = dilated(side, apart, (10, 18), 16, 1)
    made.poison()
    made.run(depthwise.Tile(2, 16, 1))
    made.check()


@pytest.mark.parametrize(("side", "stride", "apart"), [(3, 1, 1), (5, 1, 1), (7, 2, 1), (3, 1, 2), (5, 1, 3)])
def test_it_is_torch_s_convolution(side: int, stride: int, apart: int) -> None:
    x, weight, bias = torch.randn(2, 8, 9, 7), torch.randn(8, 1, side, side), torch.randn(8)
    assert torch.equal(depthwise.unpacked(depthwise.pack(weight)), weight)
    padding = side // 2 * apart
    wanted = functional.silu(functional.conv2d(x, weight, bias, stride, padding, dilation=apart, groups=8))
    op = depthwise.DILATED_OP if apart > 1 else depthwise.OP if stride == 1 else depthwise.STRIDED_OP
    assert_torch_s(op, x, weight, wanted, Ends(SILU, dilation=apart), bias)


def test_it_takes_the_layers_that_it_can() -> None:
    layer = LayerDescription("conv2d", 24, 24, (8, 8), (8, 8), (5, 5), (1, 1), (2, 2), groups=24)
    strided = replace(layer, stride=(2, 2), out_size=(4, 4))
    assert taken(depthwise.OP, layer)
    assert taken(depthwise.STRIDED_OP, strided)
    assert not taken(depthwise.OP, strided)
    assert not taken(depthwise.STRIDED_OP, layer)
    changes: list[dict[str, Any]] = [
        {"groups": 12}, {"outer": 48}, {"padding": (1, 1)}, {"window": (5, 3)}, {"dilation": (2, 2)},
        {"inner": 12, "outer": 12, "groups": 12}, {"window": (9, 9), "padding": (4, 4)}, {"kind": "conv_transpose2d"},
    ]  # fmt: skip
    for changed in changes:
        assert not taken(depthwise.OP, replace(layer, **changed))
    apart = replace(layer, dilation=(3, 3), padding=(6, 6))
    assert taken(depthwise.DILATED_OP, apart)
    unlike: list[dict[str, Any]] = [{"dilation": (3, 2)}, {"padding": (2, 2)}, {"stride": (2, 2)}, {"groups": 12}]
    others = (layer, *(replace(apart, **changed) for changed in unlike))
    assert not any(taken(depthwise.DILATED_OP, other) for other in others)


def test_the_operand_at_fault_is_named() -> None:
    x, weight, bias = torch.zeros(1, 8, 8, 16).half(), torch.zeros(9, 16).half(), torch.zeros(16)
    ends, out = Epilogue(bias=bias), Outputs(torch.zeros_like(x))
    tile = depthwise.Tile(4, 32)
    counts = Epilogue(bias=bias, statistics=True), Outputs(out.out, statistics=torch.zeros(1, 1, 2, 16))
    by_bytes = torch.zeros(1, 8, 8, 32).to(torch.float8_e4m3fn)[..., :16]
    refused: list[tuple[str, tuple[Any, ...]]] = [
        ("^x must be float16", (x.float(), weight.float(), ends, out)),
        (r"^weight must be \[9, 25 or 49, 16\]", (x, weight.float(), ends, out)),
        (r"^weight must be \[9, 25 or 49, 16\]", (x, weight[:4], ends, out)),
        ("^out must have the height and width", (x, weight, ends, Outputs(torch.zeros(1, 3, 3, 16).half()))),
        ("^bias must be 16", (x, weight, Epilogue(bias=bias[:8].clone()), out)),
        ("^pool must not be asked", (x, weight, Epilogue(bias=bias, pool=True), Outputs(out.out, out.out))),
        ("the tile has 4 × 16", (x, weight, *counts, tile)),
        ("^weight must be", (by_bytes, weight, ends, out)),
        ("^dilation must be at least 1, got -2$", (x, weight, replace(ends, dilation=-2), out)),
        ("^x's strips of rows must be at most 65535, got 1000000$", (x, weight, replace(ends, dilation=10**6), out)),
        ("^statistics must not be asked", (x, weight, replace(counts[0], dilation=2), counts[1])),
        (
            "^dilation must not be asked",
            (x, weight, replace(ends, dilation=2), Outputs(torch.zeros(1, 4, 4, 16).half())),
        ),
    ]
    for message, operands in refused:
        with pytest.raises(ValueError, match=message):
            depthwise.depthwise(*operands)


@pytest.fixture
def gpu() -> Iterator[None]:
    with gpu_for(HALF):
        yield


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", depthwise.WINDOWS)
def test_every_tile_is_the_reference_s(side: int, stride: int) -> None:
    """With statistics, and without; each run twice, with the same bits."""
    made = [windowed(side, stride, size, 96) for size in ((13, 18), (130, 77))]
    bare = [
        replace(one, epilogue=replace(one.epilogue, statistics=False), outputs=Outputs(one.outputs.out)) for one in made
    ]
    check_all([(one, tile) for one in (*made, *bare) for tile in one.candidates()])


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("apart", [2, 12, 40])
@pytest.mark.parametrize("side", depthwise.WINDOWS)
def test_every_tile_reads_taps_that_lie_apart(side: int, apart: int) -> None:
    one = dilated(side, apart, (33, 77), 96)
    check_all([(one, tile) for tile in one.candidates()])
