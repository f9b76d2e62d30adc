"""The kernels of volumes against torch's own convolutions, and in the interpreter against their references."""

from dataclasses import replace

import pytest
import torch

from pipeline.kernels import conv3x3, conv_by_slice, conv_first, conv_head, norm_pass, upconv2x2
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.norm_pass import Norm, NormPass
from pipeline.kernels.polyphase import polyphase_triton
from pipeline.kernels.polyphase.polyphase_operands import check_operands
from tests.kernels.examples import FP8, HALF, TYPES, Layer, Phases, check, example, operands, values
from tests.kernels.kinds import of_two_slices, small_tile


@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize(
    ("rows", "slices", "counts"), [(8, 1, True), (8, 2, True), (8, 3, True), (9, 3, False), (13, 3, False)]
)
def test_a_kernel_reads_the_slices_around_each(rows: int, slices: int, counts: bool, dtype: torch.dtype) -> None:
    """Zeros before the first and behind the last of a volume; a slice may end within a tile."""
    layer = Layer(2, (rows, 6), 16, 48, residual=dtype, statistics=counts, slices=slices)
    made = example(conv3x3.VOLUME_OP, dtype, layer)
    made.poison()
    made.run(made.candidates()[-1])
    made.check()


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
def test_a_weight_for_two_slices_at_a_time_is_the_same_weight(outer: int) -> None:
    """Three quarters of its entries count where all 32 channels are used; the first slice read is the first one's."""
    made = example(conv3x3.VOLUME_OP, HALF, Layer(1, (8, 4), 16, outer, slices=2))
    both = of_two_slices(made)
    assert tuple(both.weight.shape) == (36, 64, 16)
    assert torch.equal(conv3x3.unstacked(both.weight, outer), made.weight)
    assert (both.weight != 0).float().mean() == pytest.approx(0.75 * outer / 32, abs=0.01)
    assert torch.equal(both.weight[:9, :8], made.weight[:9, :8])
    assert torch.equal(both.weight[9:18, 8:16], made.weight[:9, :8])
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
        norm_pass.norm_pass(x, torch.empty(1), how, x)
    with pytest.raises(ValueError, match=r"^x must have less than 2\^31 values an image"):
        conv_head.conv_head(x, weight, Epilogue(bias=torch.zeros(2)), logits)
    with pytest.raises(ValueError, match=r"^image must have less than 2\^31 values each"):
        conv_first.conv_first(volumes, first, Epilogue(bias=torch.zeros(32)), Outputs())
    with pytest.raises(ValueError, match=r"^logits must be"):
        conv_head.conv_head(few, weight, Epilogue(bias=torch.zeros(2)), logits)
