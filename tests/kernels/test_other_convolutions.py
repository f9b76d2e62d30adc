"""Convolutions in groups, with taps apart, of every second pixel, and of volumes: interpreted, and torch's own."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from pipeline.kernels import (
    conv1x1,
    conv3x3,
    conv3x3_grouped,
    conv_by_slice,
    conv_first,
    conv_head,
    depthwise,
    norm_pass,
    upconv2x2,
)
from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.block_statistics import blocks_of
from pipeline.kernels.common.epilogue import Epilogue, Outputs, sums_of
from pipeline.kernels.common.kernel_op import KernelOp
from pipeline.kernels.conv3x3 import conv3x3_gluon, conv3x3_triton
from pipeline.kernels.norm_pass import Norm, NormPass
from pipeline.kernels.polyphase import polyphase_triton
from pipeline.kernels.polyphase.polyphase_triton import check_operands
from tests.kernels.examples import (
    DEVICE,
    FP8,
    HALF,
    TYPES,
    Example,
    Layer,
    Phases,
    check,
    check_all,
    example,
    gpu_for,
    operands,
    poisoned,
    values,
)
from tests.kernels.kinds import of_two_slices, small_tile

TILE = conv3x3_triton.Tile(8, 16, 64, 32, warps=4)
# Channels and a group's: less than a tile, several, one that isn't full, groups of several tiles, and such as don't
# divide 64, of which one has as many channels as its window.
SHAPES = [(32, 8), (128, 4), (96, 32), (256, 128), (128, 64), (144, 24), (240, 48), (192, 96), (160, 40)]


@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("channels", "width"), SHAPES)
def test_a_tile_of_groups_reads_its_own_window(channels: int, width: int, stride: int, dtype: torch.dtype) -> None:
    if stride == 1:
        layer = Layer(1, (9, 18), channels, channels, residual=dtype, statistics=True)
        made = example(conv3x3_grouped.OP, dtype, layer)
    else:
        made = example(conv3x3_grouped.STRIDED_OP, dtype, Layer(1, (18, 12), channels, channels, statistics=True))
    tile = TILE if stride == 1 else polyphase_triton.Tile(8, 16, 64, 32, warps=4)
    weight = conv3x3_grouped.pack(values(channels, width, 3, 3, dtype=torch.float32) / width).to(dtype)
    made = replace(made, weight=weight)
    made.store_and_check(tile)


def test_what_reads_another_window_is_refused() -> None:
    made = example(conv3x3_grouped.OP, HALF, Layer(1, (8, 16), 128, 128))
    with pytest.raises(ValueError, match=r"^a tile must have 64 channels, whose window is one, got 32$"):
        made.run(replace(TILE, out=32))
    with pytest.raises(ValueError, match=r"^weight must be \[9, 128, a multiple of 64\], got \[9, 128, 32\]$"):
        replace(made, weight=made.weight[:, :, :32].contiguous()).run(TILE)
    made = example(conv3x3_grouped.STRIDED_OP, HALF, Layer(1, (16, 32), 128, 128))
    tile = polyphase_triton.Tile(8, 16, 64, 32)
    with pytest.raises(ValueError, match=r"^a tile must have 64 channels, whose window is one, got 32$"):
        made.run(replace(tile, out=32))
    with pytest.raises(ValueError, match=r"^full_weight must be \[9, .* of 64\], got \[9, 128, 32\]$"):
        replace(made, weight=made.weight[:, :, :32].contiguous()).run(tile)


@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize("dilation", [2, 3, 7, 40])
def test_every_tap_reads_its_own_pixel(dilation: int, dtype: torch.dtype) -> None:
    layer = Layer(2, (9, 18), 32, 48, residual=dtype, statistics=True, dilation=dilation)
    made = example(conv3x3.DILATED_OP, dtype, layer)
    made.store_and_check(conv3x3_triton.Tile(8, 16, 32, 32, warps=4))


def test_kernels_whose_taps_share_a_box_refuse_it() -> None:
    made = example(conv3x3.OP, HALF, Layer(1, (8, 16), 32, 48, dilation=2))
    with pytest.raises(ValueError, match=r"^dilation must not be asked of this kernel$"):
        made.run(conv3x3_gluon.Tile(16, 16, 64, 32, 3, 6, 2, 4))
    near, far = (example(conv3x3.DILATED_OP, HALF, Layer(dilation=apart)) for apart in (1, 2))
    assert near.epilogue.key != far.epilogue.key
    assert {type(tile) for tile in far.candidates()} == {conv3x3_triton.Tile}
    assert replace(far.epilogue, dilation=1).parts == near.epilogue.parts


@pytest.mark.parametrize(("dtype", "stored"), TYPES)
def test_sums_of_parts_of_the_channels_end_as_one(dtype: torch.dtype, stored: torch.dtype) -> None:
    """With all that is folded, at a size that no tile divides."""
    layer = Layer(2, (10, 19), 48, 48, pool=True, residual=dtype, statistics=True, stored_as=stored)
    made = example(conv3x3.OP, dtype, layer)
    parts = zip(made.x.chunk(3, 3), made.weight.chunk(3, 2), strict=True)
    sums = torch.cat([sums_of(*part) for part in parts])
    given = conv3x3_triton.Operands(made.x, made.weight, made.epilogue, made.outputs)
    conv3x3_triton.add_parts(given, sums, 3, dependent=False)
    made.check()


# Shared memory of compute capabilities 9.0, 8.0 and 12.0, in KiB.
@pytest.mark.parametrize(("room", "hopper"), [(227, True), (163, False), (99, False)])
def test_tiles_have_as_many_stages_as_fit(room: int, hopper: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 64 channels in fp16, where a stage of the likeliest tile takes 72 KiB and its output 64; none is left out."""
    monkeypatch.setattr(conv3x3_triton, "shared_bytes", lambda _: room * 1024)
    monkeypatch.setattr(conv3x3_triton, "gluon_barred", lambda: None if hopper else "no Hopper")
    tiles = example(conv3x3.DILATED_OP, HALF, Layer(1, (8, 16), 64, 64, dilation=2)).candidates()
    assert [(tile.rows, tile.cols) for tile in tiles] == [(16, 32), (16, 16), (8, 16)]
    assert tiles[0].stages == 2
    assert tiles[-1].stages == 3  # 24 KiB a stage
    wide = example(conv3x3.DILATED_OP, HALF, Layer(1, (8, 16), 64, 128, statistics=True, dilation=2)).candidates()
    assert len(wide) == 3
    assert {tile.stages for tile in wide} <= {2, 3}


@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize("size", [(4, 34), (6, 5)], ids=["a row of more than a tile", "an odd width"])
def test_every_tile_stores_every_second_pixel(size: tuple[int, int], dtype: torch.dtype) -> None:
    made = example(conv1x1.STRIDED_OP, dtype, Layer(2, size, 32, 48))
    for tile in made.candidates():
        made.store_and_check(replace(tile, pixels=16, out=16, depth=32))


def test_rows_that_do_not_follow_each_other_are_refused() -> None:
    made = example(conv1x1.STRIDED_OP, HALF, Layer(2, (5, 8), 32, 48))
    with pytest.raises(ValueError, match=r"^x's pixels must follow each other at one step"):
        made.run()
    residual = replace(made.epilogue, residual=torch.zeros(2, 3, 4, 48).half())
    with pytest.raises(ValueError, match=r"^residual must not be asked"):
        replace(made, epilogue=residual).run()


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


def dilated(side: int, apart: int, size: tuple[int, int], channels: int = 24, batch: int = 2) -> Example:
    made = windowed(side, 1, size, channels, batch)
    epilogue = replace(made.epilogue, statistics=False, dilation=apart)
    return replace(made, op=depthwise.DILATED_OP, epilogue=epilogue, outputs=Outputs(made.outputs.out))


@pytest.mark.parametrize(("side", "apart"), [(3, 2), (3, 5), (5, 3), (3, 12)])
def test_a_window_whose_taps_lie_apart_is_the_reference_s(side: int, apart: int) -> None:
    made = dilated(side, apart, (10, 18), 16, 1)
    made.store_and_check(depthwise.Tile(2, 16, 1))


def test_the_operand_at_fault_is_named() -> None:
    x, weight, bias = torch.zeros(1, 8, 8, 16).half(), torch.zeros(9, 16).half(), torch.zeros(16)
    ends, out = Epilogue(bias=bias), Outputs(torch.zeros_like(x))
    tile = depthwise.Tile(4, 32)
    counts = Epilogue(bias=bias, statistics=True), Outputs(out.out, statistics=torch.zeros(1, 1, 2, 16))
    by_bytes = torch.zeros(1, 8, 8, 32).to(torch.float8_e4m3fn)[..., :16]
    refused: list[tuple[str, tuple[Any, Any, Any, Any]]] = [
        ("^x must be float16", (x.float(), weight.float(), ends, out)),
        (r"^weight must be \[9, 25 or 49, 16\]", (x, weight.float(), ends, out)),
        (r"^weight must be \[9, 25 or 49, 16\]", (x, weight[:4], ends, out)),
        ("^out must have the height and width", (x, weight, ends, Outputs(torch.zeros(1, 3, 3, 16).half()))),
        (r"^bias must be \[16\]", (x, weight, Epilogue(bias=bias[:8].clone()), out)),
        ("^pool must not be asked", (x, weight, Epilogue(bias=bias, pool=True), Outputs(out.out, out.out))),
        ("the tile has 4 × 16", (x, weight, *counts)),
        ("^weight must be", (by_bytes, weight, ends, out)),
        ("^dilation must be at least 1, got -2$", (x, weight, replace(ends, dilation=-2), out)),
        ("^x's strips of rows must be at most 65535, got 1000000$", (x, weight, replace(ends, dilation=10**6), out)),
        ("^statistics must not be asked", (x, weight, replace(counts[0], dilation=2), counts[1])),
        (
            "^dilation must not be asked",
            (x, weight, replace(ends, dilation=2), Outputs(torch.zeros(1, 4, 4, 16).half())),
        ),
    ]
    for message, given in refused:
        with pytest.raises(ValueError, match=message):
            depthwise.depthwise(*given, tile)


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


@pytest.mark.parametrize("op", [conv3x3.VOLUME_OP, conv3x3.WIDE_VOLUME_OP], ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize(
    ("rows", "slices", "counts"), [(8, 1, True), (8, 2, True), (8, 3, True), (9, 3, False), (13, 3, False)]
)
def test_a_kernel_reads_the_slices_around_each(
    op: KernelOp, rows: int, slices: int, counts: bool, dtype: torch.dtype
) -> None:
    """Zeros before the first and behind the last of a volume; a slice may end within a tile."""
    layer = Layer(2, (rows, 6), 16, 48, residual=dtype, statistics=counts, slices=slices)
    made = example(op, dtype, layer)
    made.store_and_check(made.candidates()[-1])


@pytest.mark.parametrize(("dtype", "stored"), TYPES)
@pytest.mark.parametrize(("slices", "step"), [(4, 2), (2, 1), (3, 1)])
def test_a_kernel_with_a_stride_reads_slices(slices: int, step: int, dtype: torch.dtype, stored: torch.dtype) -> None:
    made, buffer = operands(Phases(2, (8, 5), 0, 16, 48, counts=True, slices=slices, step=step), dtype, stored)
    check(made, buffer, polyphase_triton.Tile(8, 16, 64, 32))


@pytest.mark.parametrize(("slices", "rows", "cols"), [(3, 16, 8), (2, 24, 8), (2, 16, 7), (-2, 16, 8)])
def test_a_stride_takes_whole_pairs_alone(slices: int, rows: int, cols: int) -> None:
    made, _ = operands(Phases(1, (8, 4), 0, 16, 48, slices=2))
    full = values(1, abs(slices) * rows, cols, 16)
    with pytest.raises(ValueError, match=f"^full must have (a multiple of 2|{slices}) slices"):
        check_operands(made._replace(full=full, epilogue=replace(made.epilogue, slices=slices)))


SLICED = (conv_by_slice.OP, conv_by_slice.FIRST_OP, conv_by_slice.STRIDED_OP, conv_by_slice.TRANSPOSED_OP)


def test_slices_that_are_no_images_are_refused() -> None:
    made = example(conv_by_slice.OP, HALF, Layer(1, (8, 4), 16, 32, slices=2))
    with pytest.raises(ValueError, match=r"^x must have 3 slices of one height"):
        replace(made, epilogue=replace(made.epilogue, slices=3)).run()
    counted = example(conv_by_slice.OP, HALF, Layer(1, (4, 4), 16, 32, slices=2, statistics=True))
    with pytest.raises(ValueError, match="statistics of a volume need slices of a multiple of 8 rows, got 4"):
        counted.run()
    first = example(conv_by_slice.FIRST_OP, HALF, Layer(1, (8, 4), 1, 16, slices=2))
    with pytest.raises(ValueError, match=r"^volumes must have one channel"):
        replace(first, x=first.x.repeat(1, 2, 1, 1, 1)).run()
    with pytest.raises(ValueError, match=r"^x must have 2 slices"):
        replace(first, x=first.x[:, :, :1]).run()


@pytest.mark.parametrize("outer", [8, 24, 32])
@pytest.mark.parametrize(("op", "side"), [(conv3x3.VOLUME_OP, 3), (conv3x3.WIDE_VOLUME_OP, 5)], ids=["3", "5"])
def test_a_weight_for_two_slices_at_a_time_is_the_same_weight(op: KernelOp, side: int, outer: int) -> None:
    """Most of its entries count where all 32 channels are used; the first slice read is the first one's."""
    made, plane = example(op, HALF, Layer(1, (8, 4), 16, outer, slices=2)), side**2
    both = of_two_slices(made)
    assert tuple(both.weight.shape) == (plane * (side + 1), 64, 16)
    assert torch.equal(conv3x3.unstacked(both.weight, outer), made.weight)
    assert (both.weight != 0).float().mean() == pytest.approx(side / (side + 1) * outer / 32, abs=0.01)
    assert torch.equal(both.weight[:plane, :8], made.weight[:plane, :8])
    assert torch.equal(both.weight[plane : 2 * plane, 8:16], made.weight[:plane, :8])
    for name, wanted in made.expected().items():
        assert torch.equal(both.expected()[name], wanted)


def test_what_is_no_volume_is_refused() -> None:
    made = example(conv3x3.VOLUME_OP, HALF, Layer(1, (8, 4), 16, 32, slices=2))
    for slices, weight in ((3, made.weight), (1, conv3x3.stacked(made.weight)), (2, made.weight[:9])):
        wrong = replace(made, epilogue=replace(made.epilogue, slices=slices), weight=weight)
        with pytest.raises(ValueError, match=r"^x must have \d slices"):
            wrong.run()
    with pytest.raises(ValueError, match=r"^weight must be"):
        replace(made, weight=made.weight[:18]).run()
    with pytest.raises(ValueError, match="plain Triton makes one slice at a time"):
        of_two_slices(made).run(small_tile(made))
    grown = example(upconv2x2.VOLUME_OP, HALF, Layer(1, (4, 4), 16, 32, slices=2))
    with pytest.raises(ValueError, match="x must have 2 slices of a multiple of 8 rows"):
        grown.run()


def test_maps_of_more_values_than_a_kernel_counts_are_refused() -> None:
    """Of 2^31 in an image, as a deep volume has them: in 32 bits they would lie somewhere else."""
    x, few = (torch.empty(1, height, 2**12, 16, dtype=HALF, device="meta") for height in (2**15, 2**14))
    how = NormPass(Norm(eps=1e-5))
    volumes, first = torch.empty(1, 2, 2**10, 2**10, 2**10, device="meta"), torch.empty(6, 3, 4, 32, dtype=HALF)
    weight, logits = torch.empty(1, 2, 16, dtype=HALF), Outputs(logits=torch.empty(1))
    with pytest.raises(ValueError, match=r"^x must have less than 2\^31 values an image"):
        norm_pass.norm_pass(x, torch.empty(1), how, x, norm_pass.Tile(4096, 4, False))
    with pytest.raises(ValueError, match=r"^x must have less than 2\^31 values an image"):
        conv_head.conv_head(x, weight, Epilogue(bias=torch.zeros(2)), logits, conv_head.Tile(1, 64, 16))
    with pytest.raises(ValueError, match=r"^image must have less than 2\^31 values each"):
        conv_first.conv_first(volumes, first, Epilogue(bias=torch.zeros(32)), Outputs(), conv_first.RowsTile(16, 4, 1))
    with pytest.raises(ValueError, match=r"^logits must be"):
        conv_head.conv_head(few, weight, Epilogue(bias=torch.zeros(2)), logits, conv_head.Tile(1, 64, 16))
