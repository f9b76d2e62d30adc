"""The net's first convolution by rows that are gathered once: what it takes, and on a GPU what it answers."""

from dataclasses import replace

import pytest
import torch

from pipeline.kernels import conv_first
from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.program import STRIPS
from pipeline.kernels.conv_first import conv_first_gluon
from pipeline.kernels.conv_first.conv_first_gluon import RowsTile as Tile
from pipeline.kernels.conv_first.conv_first_triton import Operands
from tests.kernels.examples import FP8, HALF, Layer, example, twice
from tests.kernels.test_narrow_kernels import gpu

__all__ = ["gpu"]  # a fixture, which the tests on a GPU ask for

LEAKY = Activation("leaky_relu", 0.1)


def layer_of(inner: int, outer: int, window: int = 3, stride: int = 1) -> Operands:
    packed = conv_first.pack(torch.empty(outer, inner, window, window, device="meta"))
    out = torch.empty(1, 64 // stride, 64 // stride, outer, device="meta", dtype=HALF)
    image = torch.empty(1, inner, 64, 64, device="meta")
    return Operands(image, packed, Epilogue(bias=torch.empty(outer, device="meta")), out)


@pytest.mark.parametrize("taken", [layer_of(3, 32), layer_of(2, 64), layer_of(4, 8)], ids=["three", "two", "four"])
def test_rows_are_of_small_windows_of_several_channels(taken: Operands) -> None:
    assert conv_first_gluon.suits_rows(taken)


@pytest.mark.parametrize(
    "left",
    [layer_of(1, 32), layer_of(5, 32), layer_of(3, 72), layer_of(3, 32, 5), layer_of(3, 32, stride=2)],
    ids=["one channel", "five channels", "wide", "window of 5", "stride of 2"],
)
def test_other_layers_are_refused(left: Operands) -> None:
    """A grey image's window fills one product as it is; five channels' rows fill more than one."""
    assert not conv_first_gluon.suits_rows(left)
    with pytest.raises(
        ValueError, match="this tile takes windows of 3 with a stride of 1, 2 to 4 channels in and at most 64 out"
    ):
        conv_first_gluon.launch(left, Tile(16, 4, 1))


def test_sums_need_strips_of_whole_blocks() -> None:
    given = layer_of(3, 32)
    with pytest.raises(ValueError, match="statistics are of blocks of 8 × 16 pixels"):
        conv_first_gluon.launch(given._replace(epilogue=replace(given.epilogue, statistics=True)), Tile(4, 4, 1))


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize(
    "layer",
    [
        Layer(2, (7, 19), 3, 32, LEAKY),
        Layer(3, (131, 77), 4, 24, LEAKY, statistics=True),
        Layer(2, (200, 173), 3, 64, LEAKY, statistics=True),
        Layer(2, (64, 130), 2, 16, LEAKY),
    ],
    ids=["less than a strip", "sums of odd sizes", "wide", "two channels"],
)
def test_every_tile_of_rows_stores_what_the_reference_stores(layer: Layer, dtype: torch.dtype) -> None:
    """Into slices of channels, each run twice; where sums are taken they are stored, too."""
    if dtype == FP8:  # in a buffer of others', channels begin at multiples of 16 bytes
        layer = replace(layer, outer=-(-layer.outer // 16) * 16)
    made = example(conv_first.OP, dtype, layer)
    tiles = [tile for tile in made.candidates() if isinstance(tile, Tile)]
    assert tiles
    for tile in tiles:
        for rows in {tile.rows, 16}:
            twice(made, replace(tile, rows=rows))


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("rows", STRIPS)
def test_few_programs_gather_all_strips(monkeypatch: pytest.MonkeyPatch, rows: int, ahead: int) -> None:
    """One multiprocessor: each program has several strips, and rows on their way are none of the strip before."""
    monkeypatch.setattr(conv_first_gluon, "multiprocessors", lambda _: 1)
    twice(example(conv_first.OP, HALF, Layer(3, (200, 173), 3, 32, statistics=True)), Tile(rows, 3, ahead))


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_volumes_of_one_channel_are_gathered_by_rows() -> None:
    """Three slices are the channels; before the first and after the last there is nothing."""
    made = example(conv_first.VOLUME_OP, HALF, Layer(2, (24, 17), 1, 32, LEAKY, statistics=True, slices=3))
    tiles = [tile for tile in made.candidates() if isinstance(tile, Tile)]
    assert tiles
    for tile in tiles:
        twice(made, tile)


@pytest.mark.parametrize(
    ("given", "barred", "modules"),
    [
        (layer_of(3, 32), None, ["conv_first_rows", "conv_first_gluon"]),
        (layer_of(1, 32), None, ["conv_first_gluon"]),
        (layer_of(3, 32), "no such Triton", ["conv_first_triton"]),
        (layer_of(3, 136), None, ["conv_first_triton"]),
    ],
    ids=["by rows, too", "a grey image", "barred", "wide"],
)
def test_each_layer_has_the_tiles_of_the_kernels_that_take_it(
    monkeypatch: pytest.MonkeyPatch, given: Operands, barred: str | None, modules: list[str]
) -> None:
    monkeypatch.setattr(conv_first, "gluon_barred", lambda: barred)
    monkeypatch.setattr(conv_first, "interpreted", lambda: False)
    tiles = conv_first.candidates(*given[:3], Outputs(given.out))
    assert list(dict.fromkeys(tile.kernel for tile in tiles)) == modules
