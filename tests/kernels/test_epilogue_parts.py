"""A residual and statistics: plain kernels and the library against the references, and what is refused."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.nn import functional

from pipeline.kernels import conv1x1, conv3x3, conv_first, norm_pass
from pipeline.kernels.common.activation import NONE, Activation
from pipeline.kernels.common.block_statistics import blocks_of, grouped, merged, statistics_of
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import Ends, KernelOp, LibraryParameters, store_results
from pipeline.kernels.conv3x3 import conv3x3_narrow, conv3x3_triton
from pipeline.kernels.conv_first import conv_first_gluon, conv_first_triton
from tests.kernels.examples import DEVICE, HALF, Layer, example, values

TILE = conv3x3_triton.Tile(8, 16, 32, 32, warps=4)
PRELU = Activation("prelu")


def test_statistics_are_those_of_the_pixels_inside_the_image() -> None:
    made = example(conv3x3.OP, HALF, Layer(2, (13, 18), 16, 24, NONE, statistics=True))
    made.run(replace(TILE, rows=16, depth=16))
    made.check()


def test_all_parts_at_once() -> None:
    layer = Layer(1, (8, 18), 16, 16, PRELU, pool=True, classes=2, residual=HALF, statistics=True)
    made = example(conv3x3.OP, HALF, layer)
    assert made.epilogue.parts == conv3x3.OP.folds
    made.run(replace(TILE, depth=16))
    made.check()
    assert made.epilogue.key == "prelu, pool, head 2, residual float16 [4608, 576, 32, 1], statistics"


@pytest.mark.parametrize("op", [conv3x3.OP, conv1x1.OP], ids=["conv3x3", "conv1x1"])
def test_the_library_computes_the_same(op: KernelOp) -> None:
    """By torch's own operations, so that it stays a candidate whatever the epilogue asks."""
    assert op.weight_shape is not None
    assert op.pack is not None
    whole = "statistics" in op.folds
    x, weight = torch.randn(2, 6, 9, 18), torch.randn(op.weight_shape(6, 8))
    bias = torch.randn(8)
    epilogue = Epilogue(
        bias=bias,
        activation=PRELU,
        slopes=torch.rand(8),
        residual=torch.randn(2, 9, 18, 8),
        residual_scale=0.5,
        statistics=whole,
    )
    entries = torch.empty(2, 2, blocks_of(9, 18), 2, 8)
    found, wanted = (Outputs(torch.empty(2, 9, 18, 8), statistics=one if whole else None) for one in entries)
    op.reference(x.permute(0, 2, 3, 1), op.pack(weight), epilogue, wanted)
    assert found.out is not None
    nchw = replace(found, out=found.out.permute(0, 3, 1, 2))
    assert epilogue.residual is not None
    ends = Ends(PRELU, epilogue.slopes, 0.5 * epilogue.residual.permute(0, 3, 1, 2))
    store_results(op.library(x, LibraryParameters(weight, bias), ends), epilogue, nchw)
    for name, part in wanted.given.items():
        torch.testing.assert_close(getattr(found, name), part, rtol=1e-4, atol=1e-3)


def apart(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have memory of their own each, as torch demands of an operation's answers."""
    return one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()


@pytest.mark.parametrize("ends", [True, False], ids=["weight and bias", "neither"])
def test_the_kernel_makes_a_norm_s_factor_and_shift(ends: bool) -> None:
    y = values(2, 26, 38, 12, dtype=torch.float32) * 3 + 100
    weight, bias = (values(12, dtype=torch.float32) + part if ends else None for part in (1, 2))
    norm = norm_pass.Norm(weight, bias, 1e-5)
    factor, shift = norm_pass.merge_statistics(statistics_of(y, 2), (26, 38), 2, norm)
    wanted = functional.instance_norm(y.permute(0, 3, 1, 2), weight=weight, bias=bias).permute(0, 2, 3, 1)
    torch.testing.assert_close(y * factor[:, None, None] + shift[:, None, None], wanted, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match=r"^weight must be 12 contiguous float32"):
        norm_pass.merge_statistics(statistics_of(y), (26, 38), 1, norm._replace(weight=torch.ones(8)))


@pytest.mark.parametrize("phases", [1, 2])
@pytest.mark.parametrize("size", [(8, 16), (26, 38)])
@pytest.mark.parametrize(("group_width", "channels"), [(1, 12), (2, 12), (4, 12), (8, 24), (16, 48), (64, 128)])
def test_the_kernel_merges_channels_and_groups_of_them_as_torch_does(
    group_width: int, channels: int, size: tuple[int, int], phases: int
) -> None:
    y = values(2, *size, channels, dtype=torch.float32) * 3 + 100 + torch.arange(channels, device=DEVICE) % 7
    counted, norm = statistics_of(y, phases), norm_pass.Norm(eps=1e-5, group_width=group_width)
    with patch.object(norm_pass, "MOST_ROWS", 16 * group_width):
        found = norm_pass.merge_statistics(counted, size, phases, norm._replace(eps=None))
        factor, shift = norm_pass.merge_statistics(counted, size, phases, norm)
    assert apart(*found)
    for part, wanted in zip(found, merged(counted, *size, phases, group_width), strict=True):
        torch.testing.assert_close(part, wanted, rtol=1e-5, atol=0)
    exact = functional.group_norm(y.double().permute(0, 3, 1, 2), channels // group_width).permute(0, 2, 3, 1).float()
    torch.testing.assert_close(y * factor[:, None, None] + shift[:, None, None], exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("group_width", [1, 4, 16])
def test_many_blocks_are_merged_in_bands(group_width: int) -> None:
    """Of whole rows of blocks, groups once after them; where groups are wide, bands begin at fewer blocks."""
    counted = statistics_of(values(2, 48, 40, 32, dtype=torch.float32) * 3 + 100 + torch.arange(32, device=DEVICE))
    with patch.object(norm_pass, "MOST_ENTRIES", 17), patch.object(norm_pass, "MOST_BANDS", 5):
        assert norm_pass.bands_of(48, 18, group_width) == 3
        assert norm_pass.bands_of(44, 18, group_width) == 1
        assert [norm_pass.bands_of(48, 17, wide) for wide in (8, 16)] == [1, 3]
        found = norm_pass.merge_statistics(counted, (48, 40), norm=norm_pass.Norm(group_width=group_width))
    assert apart(*found)
    for part, wanted in zip(found, merged(counted, 48, 40, 1, group_width), strict=True):
        torch.testing.assert_close(part, wanted, rtol=1e-5, atol=0)


@pytest.mark.parametrize("phases", [1, 2])
@pytest.mark.parametrize("size", [(8, 16), (13, 33), (40, 7)])
def test_merged_statistics_are_the_variance_also_far_from_zero(size: tuple[int, int], phases: int) -> None:
    """Of values around 10000 that differ by 1: sums of squares in fp32 would leave nothing of it."""
    size = (phases * size[0], phases * size[1])
    y = torch.randn(2, *size, 4) + 1e4
    variance, mean = torch.var_mean(y.double(), dim=(1, 2), correction=0)
    found_mean, found = merged(statistics_of(y, phases), *size, phases)
    torch.testing.assert_close(found_mean.double(), mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.double(), variance, rtol=1e-3, atol=0)


def test_statistics_of_a_kernel_keep_the_variance_far_from_zero() -> None:
    """The bias puts all values near 1000, and the deviations of the blocks are still those of the sums."""
    x, weight = values(1, 16, 16, 16), values(9, 16, 16)
    bias = torch.full((16,), 1e3, device=DEVICE)
    outputs = Outputs(torch.empty(1, 16, 16, 16, device=DEVICE, dtype=HALF))
    outputs = replace(outputs, statistics=torch.empty(1, blocks_of(16, 16), 2, 16, device=DEVICE))
    conv3x3.conv3x3(x, weight, Epilogue(bias=bias, statistics=True), outputs, replace(TILE, depth=16))
    taps = weight.double().reshape(3, 3, 16, 16).permute(2, 3, 0, 1)
    sums = functional.conv2d(x.double().permute(0, 3, 1, 2), taps, padding=1)
    assert outputs.statistics is not None
    _, found = merged(outputs.statistics, 16, 16)
    torch.testing.assert_close(found.double(), sums.var(dim=(2, 3), correction=0), rtol=1e-4, atol=0)


def test_statistics_of_groups_are_those_of_their_channels_pixels() -> None:
    y = torch.randn(2, 9, 20, 8) * 3 + 5
    mean, variance = grouped(*merged(statistics_of(y), 9, 20), 2)
    wanted_variance, wanted_mean = torch.var_mean(y.unflatten(3, (4, 2)), dim=(1, 2, 4), correction=0)
    torch.testing.assert_close(mean, wanted_mean)
    torch.testing.assert_close(variance, wanted_variance)


@pytest.mark.parametrize(
    ("asked", "given", "message"),
    [
        ({"residual": torch.zeros(1, 8, 8, 8, dtype=HALF)}, {}, "^residual must be"),
        ({"residual": torch.zeros(1, 8, 8, 16)}, {}, "^residual must be float16 or"),
        ({"slopes": torch.zeros(16)}, {}, "^slopes must be given with an activation that has them, got none"),
        ({"activation": PRELU}, {}, "^slopes must be given"),
        ({"activation": PRELU, "slopes": torch.zeros(8)}, {}, "^slopes must be 16"),
        ({"statistics": True}, {}, "^statistics and its output must be given together"),
        ({"statistics": True}, {"statistics": torch.zeros(1, 2, 2, 16)}, "^statistics must be"),
    ],
)
def test_the_part_at_fault_is_named(asked: dict[str, Any], given: dict[str, Any], message: str) -> None:
    x = torch.zeros(1, 8, 8, 16, dtype=HALF)
    epilogue = Epilogue(bias=torch.zeros(16), **asked)
    with pytest.raises(ValueError, match=message):
        conv3x3.conv3x3(x, torch.zeros(9, 16, 16, dtype=HALF), epilogue, Outputs(x.clone(), **given))


def test_a_kernel_without_a_part_and_a_tile_without_its_blocks_refuse() -> None:
    x, weight, bias = torch.zeros(1, 8, 8, 16, dtype=HALF), torch.zeros(9, 16, 16, dtype=HALF), torch.zeros(16)
    counted = Outputs(x.clone(), statistics=torch.zeros(1, 1, 2, 16))
    with pytest.raises(ValueError, match="statistics must not be asked of this kernel"):
        conv1x1.conv1x1(x, weight[0], Epilogue(bias=bias, statistics=True), counted)
    asked = Epilogue(bias=bias, statistics=True)
    with pytest.raises(ValueError, match="blocks of 8 × 16 pixels, and the tile has 8 × 8"):
        conv3x3.conv3x3(x, weight, asked, counted, replace(TILE, cols=8))
    with pytest.raises(ValueError, match=r"the tile has 4 × 64"):
        conv3x3.conv3x3(x, weight, asked, counted, conv3x3_narrow.Tile(4))
    image, packed = torch.zeros(1, 3, 8, 8), conv_first.pack(torch.zeros(16, 3, 3, 3))
    for tile in (conv_first_triton.Tile(4, 32, 16), conv_first_gluon.Tile(4)):
        with pytest.raises(ValueError, match=f"the tile has {tile.rows} × "):
            conv_first.conv_first(image, packed, asked, counted, tile)
    with pytest.raises(ValueError, match=r"^statistics must be"):
        norm_pass.merge_statistics(torch.zeros(1, 2, 2, 16), (8, 8))
