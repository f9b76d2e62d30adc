"""The kernels of the layers beside the image: few channels, few classes, any window; and both ways of upsampling."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from pipeline.kernels import conv3x3, conv_first, conv_head
from pipeline.kernels.common.activation import NONE, RELU, Activation
from pipeline.kernels.common.epilogue import Epilogue, Head, Outputs
from pipeline.kernels.common.program import STRIPS
from pipeline.kernels.conv3x3 import conv3x3_narrow
from pipeline.kernels.conv_first import RowsTile as Tile
from tests.kernels.examples import (
    DEVICE,
    FP8,
    HALF,
    Example,
    Layer,
    assert_outputs_near,
    check_all,
    example,
    gpu_for,
    poisoned,
    twice,
    values,
)

WINDOWS = [(7, 2, 3), (3, 2, 3), (5, 1, 4), (3, 1, 1)]  # side, stride, channels
EDGED = [(7, 3, "reflect", (4, 37)), (5, 1, "replicate", (9, 29)), (9, 8, "zeros", (5, 30)), (3, 2, "reflect", (9, 65))]
MODES = ["zeros", "reflect", "replicate"]
NARROW = [(8, 16, HALF), (16, 8, HALF), (24, 24, HALF), (32, 32, HALF), (64, 16, HALF), (32, 32, FP8), (48, 16, FP8)]
ODD = (13, 18) if DEVICE.type == "cuda" else (7, 10)  # several tiles; the interpreter walks over every window


@pytest.fixture
def gpu() -> Iterator[None]:
    with gpu_for(FP8):
        yield


def windowed(
    side: int, stride: int, inner: int, size: tuple[int, int] = ODD, mode: str = "zeros"
) -> tuple[Tensor, Tensor, Epilogue]:
    image = values(2, inner, *size, dtype=torch.float32)
    weight = values(32, inner, side, side, dtype=torch.float32) / (inner * side * side) ** 0.5
    bias = torch.linspace(-1, 1, 32, device=DEVICE)
    return image, weight, Epilogue(bias=bias, activation=RELU, early=True, padding_mode=mode)


def half(size: tuple[int, int], stride: int) -> tuple[int, int]:
    return -(-size[0] // stride), -(-size[1] // stride)


def check_window(made: tuple[Tensor, Tensor, Epilogue], stride: int, dtype: torch.dtype, tile: conv_first.Tile) -> None:
    image, weight, epilogue = made
    size = half((image.shape[2], image.shape[3]), stride)
    found, wanted = (Outputs(poisoned(2, *size, 32, dtype=dtype)) for _ in range(2))
    conv_first.conv_first(image, conv_first.pack(weight), epilogue, found, tile)
    conv_first.reference(image, conv_first.pack(weight), epilogue, wanted)
    assert_outputs_near(found, wanted, dtype)


@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize(("side", "classes", "inner"), [(3, 1, 16), (3, 8, 48), (1, 4, 32)])
def test_a_last_convolution_writes_logits(side: int, classes: int, inner: int, dtype: torch.dtype) -> None:
    check_head(side, classes, inner, dtype, conv_head.Tile(1 if side == 1 else 4, 32, 32))


@pytest.mark.parametrize("dtype", [HALF, FP8])
@pytest.mark.parametrize(("side", "classes", "mode", "size"), EDGED)
def test_windows_of_a_last_convolution_reach_over_edges(
    side: int, classes: int, mode: str, size: tuple[int, int], dtype: torch.dtype
) -> None:
    """Of maps smaller than a tile and larger, by every tile; tanh after it."""
    x, weight = torch.empty(2, *size, 32, dtype=dtype), torch.empty(side * side, classes, 32)
    for tile in conv_head.candidates(x, weight, Epilogue(padding_mode=mode)):
        check_head(side, classes, 32, dtype, tile, mode, size)


def check_head(
    side: int, classes: int, inner: int, dtype: torch.dtype, tile: Any, mode: str = "zeros", size: Any = ODD
) -> None:
    """Compare a tile's logits with the reference's, of which a NaN pixel makes NaN; on a GPU twice, for races."""
    x = torch.cat([poisoned(2, *size, inner, dtype=dtype), values(2, *size, inner, dtype=dtype)], 3)[..., inner:]
    if isinstance(tile, conv_head.Tile) and (dtype, DEVICE.type) == (HALF, "cpu"):  # cuDNN spreads NaN
        x[0, size[0] // 2, size[1] // 2] = float("nan")
    weight = conv3x3.pack(values(classes, inner, side, side, dtype=torch.float32) / inner**0.5).to(dtype)
    bias, end = torch.linspace(-1, 2, classes, device=DEVICE), NONE if mode == "zeros" else Activation("tanh")
    epilogue = Epilogue(bias=bias, activation=end, early=True, padding_mode=mode)
    found, again, wanted = (Outputs(logits=poisoned(2, classes, *size, dtype=torch.float32)) for _ in range(3))
    conv_head.conv_head(x, weight, epilogue, found, tile)
    conv_head.reference(x, weight, epilogue, wanted)
    assert_outputs_near(found, wanted, dtype)
    if DEVICE.type == "cuda":
        conv_head.conv_head(x, weight, epilogue, again, tile)
        both = found.given.values(), again.given.values()
        assert all(part.nan_to_num().equal(other.nan_to_num()) for part, other in zip(*both, strict=True))


ONE_HEAD = Epilogue(bias=torch.zeros(2), head=Head(torch.zeros(1, 2), torch.zeros(1)))
TURNED = torch.zeros(1, 8, 8, 2).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"weight": torch.zeros(9, 9, 16, dtype=HALF)}, r"weight must be \[1, 9, 25, 49 or 81, at most 8"),
        ({"weight": torch.zeros(9, 2, 16)}, r"weight must be \[9, 2, 16\]"),
        ({"x": torch.zeros(1, 8, 8, 17, dtype=HALF)[..., 1:]}, "x must start and step"),
        ({"epilogue": Epilogue()}, "the epilogue must have a bias"),
        ({"epilogue": ONE_HEAD}, "fold nothing, got none, head 1"),
        ({"epilogue": Epilogue(bias=torch.zeros(3))}, r"bias must be \[2\]"),
        ({"outputs": Outputs(logits=torch.zeros(1, 2, 4, 8))}, r"logits must be \[1, 2, 8, 8\]"),
        ({"outputs": Outputs(logits=TURNED)}, "contiguous float32, got .*, strides"),
    ],
)
def test_what_a_last_convolution_refuses_is_named_in_a_line(changed: dict[str, Any], reason: str) -> None:
    given: dict[str, Any] = {"x": torch.zeros(1, 8, 8, 16, dtype=HALF), "weight": torch.zeros(9, 2, 16, dtype=HALF)}
    given |= {"epilogue": Epilogue(bias=torch.zeros(2)), "outputs": Outputs(logits=torch.zeros(1, 2, 8, 8)), **changed}
    with pytest.raises(ValueError, match=reason) as caught:
        conv_head.conv_head(**given, tile=conv_head.Tile(1, 64, 16))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("barred", [None, "no such views"])
def test_rows_wait_in_shared_memory_where_views_may_begin(monkeypatch: pytest.MonkeyPatch, barred: str | None) -> None:
    """Elsewhere plain Triton takes their layers."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for module in (conv3x3, conv_head):
        monkeypatch.setattr(module, "reaching_views_barred", lambda: barred)
    made, x = example(conv3x3.OP, HALF, Layer(1, (64, 64), 32, 32)), torch.empty(1, 64, 64, 32, dtype=HALF)
    tiles = [*made.candidates(), *conv_head.candidates(x, x[0, :9], Epilogue())]
    assert any("narrow" in tile.kernel for tile in tiles) == (barred is None)
    assert all(("triton" in tile.kernel) == bool(barred) for tile in tiles)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("inner", "outer", "dtype"), NARROW)
def test_every_narrow_tile_stores_what_the_reference_stores(inner: int, outer: int, dtype: torch.dtype) -> None:
    """Into slices of channels, each run twice; plainly, and with sums for a norm and residuals of either type."""
    layers = [Layer(2, (13, 17), inner, outer), Layer(3, (200, 173), inner, outer)]
    for added in {HALF, dtype}:
        layers += [replace(layer, residual=added, statistics=True, stored_as=HALF) for layer in layers[:2]]
    made = [example(conv3x3.OP, dtype, layer) for layer in layers]
    cases = [(one, it) for one in made for it in conv3x3_narrow.candidates(one.x, outer, ends=bool(one.epilogue.parts))]
    assert cases
    check_all(cases)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("inner", "outer", "dtype"), [(8, 8, HALF), (16, 16, HALF), (16, 16, FP8), (32, 32, FP8)])
@pytest.mark.parametrize("classes", [0, 2, 8])
def test_narrow_tiles_pool_and_mix_units_of_pixels(inner: int, outer: int, dtype: torch.dtype, classes: int) -> None:
    """Maps without gaps, of which neighbouring pixels are one row of the product, and slices of wider maps."""
    ends = {"classes": classes, "stored": False} if classes else {"pool": True}
    made = [example(conv3x3.OP, dtype, Layer(3, size, inner, outer, LEAKY, **ends)) for size in ((14, 36), (200, 172))]
    made += [dense(one) for one in made]
    cases = [(one, tile) for one in made for tile in one.candidates() if isinstance(tile, conv3x3_narrow.Tile)]
    assert max(tile.fold for _, tile in cases) == (2 if inner * dtype.itemsize <= 16 else 1)
    check_all(cases)


def dense(made: Example) -> Example:
    """The same in maps without gaps, which hold NaN as long as nothing is stored there."""
    given = {name: part.contiguous() for name, part in made.outputs.given.items()}
    return replace(made, x=made.x.contiguous(), outputs=Outputs(**given), buffers=[])


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("inner", "outer"), [(16, 16), (64, 16), (32, 32)])
@pytest.mark.parametrize("rows", STRIPS)
def test_few_programs_walk_down_all_strips(monkeypatch: pytest.MonkeyPatch, inner: int, outer: int, rows: int) -> None:
    """One multiprocessor: each program has several strips of any height, whose rows come to the same slots."""
    monkeypatch.setattr(conv3x3_narrow, "multiprocessors", lambda _: 1)
    for sums in (False, True):
        made = example(conv3x3.OP, HALF, Layer(3, (200, 173), inner, outer, statistics=sums))
        tiles = [replace(tile, rows=rows) for tile in conv3x3_narrow.candidates(made.x, outer, ends=sums)]
        assert tiles
        for tile in dict.fromkeys(tiles):
            twice(made, tile)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("side", "stride", "inner"), WINDOWS)
def test_every_gathering_tile_stores_what_the_reference_stores(side: int, stride: int, inner: int) -> None:
    for mode, size in product(MODES, ((131, 77), (4, 200))):
        made = windowed(side, stride, inner, size, mode)
        for tile in conv_first.gather_candidates(conv_first.pack(made[1]), statistics=False):
            check_window(made, stride, HALF, tile)


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize(("side", "stride", "inner"), WINDOWS)
def test_windows_of_a_first_convolution_reach_over_edges(side: int, stride: int, inner: int, mode: str) -> None:
    for size in (ODD, (4, 9)):
        check_window(windowed(side, stride, inner, size, mode), stride, HALF, conv_first.PlainTile(2, 8, 32))


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("classes", "inner", "dtype"), [(1, 16, HALF), (8, 64, HALF), (2, 32, FP8)])
def test_every_head_tile_writes_the_reference_s_logits(classes: int, inner: int, dtype: torch.dtype) -> None:
    x = torch.empty(2, 77, 131, inner, dtype=dtype)
    tiles = list(conv_head.candidates(x, x[0, :9], Epilogue()))
    assert all(isinstance(tile, conv_head.GluonTile) for tile in tiles)
    for tile in tiles:
        check_head(3, classes, inner, dtype, tile)
    for (side, _, mode, _), size in product(EDGED, ((4, 37), (77, 131))):
        for tile in conv_head.candidates(x, x.new_empty(side * side, classes, inner), Epilogue(padding_mode=mode)):
            check_head(side, classes, inner, dtype, tile, mode, size)


__all__ = ["gpu"]  # a fixture, which the tests on a GPU ask for

LEAKY = Activation("leaky_relu", 0.1)


def layer_of(inner: int, outer: int, window: int = 3, stride: int = 1) -> tuple[Tensor, Tensor, Epilogue, Outputs]:
    packed = conv_first.pack(torch.empty(outer, inner, window, window, device="meta"))
    out = torch.empty(1, 64 // stride, 64 // stride, outer, device="meta", dtype=HALF)
    image = torch.empty(1, inner, 64, 64, device="meta")
    return image, packed, Epilogue(bias=torch.empty(outer, device="meta")), Outputs(out)


@pytest.mark.parametrize(
    "left",
    [layer_of(5, 32), layer_of(3, 72), layer_of(3, 32, 5), layer_of(3, 32, stride=2)],
    ids=["five channels", "wide", "window of 5", "stride of 2"],
)
def test_other_layers_are_refused(left: tuple[Tensor, Tensor, Epilogue, Outputs]) -> None:
    """Five channels' rows fill more than one product."""
    assert not conv_first.suits_rows(left[1], 64 // left[3].required.shape[1])
    with pytest.raises(ValueError, match="stride 1 among zeros, at most 4 channels in, 64 out"):
        conv_first.conv_first(*left, Tile(16, 4, 1))


def test_no_statistics_are_of_two_pixels() -> None:
    made = example(conv_first.OP, HALF, Layer(1, (8, 8), 3, 16, statistics=True))
    with pytest.raises(ValueError, match="statistics are of single pixels, and fold must be 1"):
        made.run(Tile(16, 4, 3, fold=2))


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
        Layer(1, (40, 333), 1, 8, LEAKY),
    ],
    ids=["less than a strip", "sums of odd sizes", "wide", "two channels", "grey, of odd width"],
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
    monkeypatch.setattr(conv_first, "multiprocessors", lambda _: 1)
    twice(example(conv_first.OP, HALF, Layer(3, (200, 173), 3, 32, statistics=True)), Tile(rows, 3, ahead))


@pytest.mark.parametrize(
    ("given", "barred", "modules"),
    [
        (layer_of(3, 32), None, ["conv_first_rows"]),
        (layer_of(2, 64), None, ["conv_first_rows", "conv_first_gluon"]),
        (layer_of(4, 8), None, ["conv_first_rows"]),
        (layer_of(1, 32), None, ["conv_first_rows"]),
        (layer_of(3, 32), "no such Triton", ["conv_first_triton"]),
        (layer_of(3, 136), None, ["conv_first_triton"]),
    ],
    ids=["by rows", "two channels, wide", "four", "a grey image", "barred", "wide"],
)
def test_each_layer_has_the_tiles_of_the_kernels_that_take_it(
    monkeypatch: pytest.MonkeyPatch, given: Any, barred: str | None, modules: list[str]
) -> None:
    monkeypatch.setattr(conv_first, "gluon_barred", lambda: barred)
    monkeypatch.setattr(conv_first, "interpreted", lambda: False)
    tiles = conv_first.candidates(*given)
    assert list(dict.fromkeys(tile.kernel for tile in tiles)) == modules
