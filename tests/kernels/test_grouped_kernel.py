"""The 3×3 convolution in groups, in the interpreter and against torch's own."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from pipeline.kernels.common.activation import RELU
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import Ends, LayerDescription, LibraryParameters
from pipeline.kernels.conv3x3 import conv3x3_grouped, conv3x3_triton
from pipeline.kernels.polyphase import grouped_strided, polyphase_triton
from tests.kernels.examples import FP8, HALF, Layer, example, values

TILE = conv3x3_triton.Tile(8, 16, 64, 32, warps=4)
# Channels and a group's: less than a tile, several, one that isn't full, groups of several tiles, and such as don't
# divide 64, of which one has as many channels as its window.
SHAPES = [(32, 8), (128, 4), (96, 32), (256, 128), (128, 64), (144, 24), (240, 48), (192, 96), (160, 40)]


@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize(("channels", "width"), SHAPES)
def test_a_tile_reads_its_own_window(channels: int, width: int, dtype: torch.dtype) -> None:
    layer = Layer(1, (9, 18), channels, channels, residual=dtype, statistics=True)
    made = example(conv3x3_grouped.OP, dtype, layer)
    weight = conv3x3_grouped.pack(values(channels, width, 3, 3, dtype=torch.float32) / width).to(dtype)
    made = replace(made, weight=weight)
    made.poison()
    made.run(TILE)
    made.check()


@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize(("channels", "width"), SHAPES)
def test_a_tile_with_a_stride_reads_its_own_window(channels: int, width: int, dtype: torch.dtype) -> None:
    made = example(grouped_strided.OP, dtype, Layer(1, (18, 12), channels, channels, statistics=True))
    weight = conv3x3_grouped.pack(values(channels, width, 3, 3, dtype=torch.float32) / width).to(dtype)
    made = replace(made, weight=weight)
    made.poison()
    made.run(polyphase_triton.Tile(8, 16, 64, 32, warps=4))
    made.check()


@pytest.mark.parametrize(("channels", "width"), SHAPES)
def test_with_a_stride_it_is_torch_s_convolution(channels: int, width: int) -> None:
    x, weight = values(2, channels, 10, 6, dtype=torch.float32), values(channels, width, 3, 3, dtype=torch.float32)
    wanted = functional.conv2d(x, weight, stride=2, padding=1, groups=channels // width).relu()
    found = grouped_strided.OP.library(x, LibraryParameters(weight, torch.zeros(channels)), Ends(RELU))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    out, epilogue = torch.empty(2, 5, 3, channels), Epilogue(bias=torch.zeros(channels), activation=RELU)
    grouped_strided.reference(x.permute(0, 2, 3, 1), conv3x3_grouped.pack(weight), epilogue, Outputs(out))
    torch.testing.assert_close(out.permute(0, 3, 1, 2), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("channels", "width"), SHAPES)
def test_it_is_torch_s_convolution(channels: int, width: int) -> None:
    x, weight = values(2, channels, 9, 7, dtype=torch.float32), values(channels, width, 3, 3, dtype=torch.float32)
    added = values(2, channels, 9, 7, dtype=torch.float32)
    wanted = (functional.conv2d(x, weight, padding=1, groups=channels // width) + added).relu()
    found = conv3x3_grouped.OP.library(x, LibraryParameters(weight, torch.zeros(channels)), Ends(RELU, residual=added))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    out = torch.empty(2, 9, 7, channels)
    epilogue = Epilogue(bias=torch.zeros(channels), activation=RELU, residual=added.permute(0, 2, 3, 1))
    conv3x3_grouped.reference(x.permute(0, 2, 3, 1), conv3x3_grouped.pack(weight), epilogue, Outputs(out))
    torch.testing.assert_close(out.permute(0, 3, 1, 2), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("channels", "groups", "taken"),
    [
        (128, 32, True),
        (1024, 32, True),
        (512, 4, True),  # RepVGG's, of 128 channels
        (96, 3, True),
        (64, 64, False),  # depthwise
        (64, 1, False),
        (96, 4, True),  # of 24
        (36, 9, False),  # rows of 72 bytes
    ],
)
def test_it_takes_groups_of_several_channels(channels: int, groups: int, taken: bool) -> None:
    geometry = {"window": (3, 3), "padding": (1, 1), "groups": groups}
    layer = LayerDescription("conv2d", channels, channels, (32, 32), (32, 32), **geometry)  # type: ignore[arg-type]
    accepts = conv3x3_grouped.OP.accepts
    assert accepts is not None
    assert accepts(layer) is taken
    others = ({"stride": (2, 2)}, {"padding": (0, 0)}, {"dilation": (2, 2)}, {"outer": 2 * channels})
    assert not any(accepts(replace(layer, **other)) for other in others)
    accepts, halved = grouped_strided.OP.accepts, replace(layer, stride=(2, 2), out_size=(16, 16))
    assert accepts is not None
    assert accepts(halved) is taken
    odd = replace(halved, in_size=(31, 32))
    assert not any(accepts(other) for other in (layer, odd, replace(halved, outer=2 * channels)))


def test_what_reads_another_window_is_refused() -> None:
    made = example(conv3x3_grouped.OP, HALF, Layer(1, (8, 16), 128, 128))
    with pytest.raises(ValueError, match=r"^a tile must have 64 channels, whose window is one, got 32$"):
        made.run(replace(TILE, out=32))
    with pytest.raises(ValueError, match=r"^weight must be \[9, 128, a multiple of 64\], got \[9, 128, 32\]$"):
        replace(made, weight=made.weight[:, :, :32].contiguous()).run(TILE)
    made = example(grouped_strided.OP, HALF, Layer(1, (16, 32), 128, 128))
    tile = polyphase_triton.Tile(8, 16, 64, 32)
    with pytest.raises(ValueError, match=r"^a tile must have 64 channels, whose window is one, got 32$"):
        made.run(replace(tile, out=32))
    with pytest.raises(ValueError, match=r"^full_weight of groups must be \[9, .* of 64\], .*, got \[9, 128, 32\]$"):
        replace(made, weight=made.weight[:, :, :32].contiguous()).run(tile)


@pytest.mark.parametrize(("width", "window"), [(2, 64), (32, 64), (64, 64), (24, 128), (48, 128), (40, 128), (56, 192)])
def test_a_window_has_all_channels_of_a_tile_s_groups(width: int, window: int) -> None:
    assert conv3x3_grouped.window_of(width) == window
    beside = (window - 64) // 2
    for begin in range(0, 64 * width, 64):
        groups = range(begin // width * width, -(-(begin + 64) // width) * width)
        assert begin - beside <= groups[0]
        assert groups[-1] < begin + 64 + beside
