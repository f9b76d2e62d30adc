"""The phases' kernels against their reference: in Triton's interpreter, or on the GPU where there is one."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.compiler.tuning.autotune import build_side_by_side
from pipeline.kernels.common.activation import NONE, Activation
from pipeline.kernels.common.capability import supported
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.polyphase import (
    Composition,
    candidates,
    compose_nearest,
    compose_transposed,
    pack,
    phase_taps,
    polyphase,
    polyphase_gluon,
    polyphase_narrow,
    polyphase_triton,
)
from pipeline.kernels.polyphase.polyphase_triton import Operands, at_border, phases_of, reference
from tests.kernels.examples import FP8, TYPES, Phases, check, operands

CASES = {
    "up and skip": Phases(2, outer=32),
    "up alone": Phases(1, (6, 3), 32, 0, 48, border=False, window_of_3=True),
    "stride": Phases(2, (5, 7), 0, 48, 32),
    "stride, 4×4": Phases(2, (5, 7), 0, 48, 32, window=4),
}


@pytest.mark.parametrize(("dtype", "stored"), TYPES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_phases_are_the_reference_s(case: Phases, dtype: torch.dtype, stored: torch.dtype) -> None:
    check(*operands(case, dtype, stored), polyphase_triton.Tile(8, 8, 32, 32, warps=4))


@pytest.mark.parametrize(
    ("name", "size"),
    [("up and skip", (9, 7)), ("up alone", (9, 17)), *((name, (9, 17)) for name in ("stride", "stride, 4×4"))],
)
def test_the_statistics_are_those_of_each_phase(name: str, size: tuple[int, int]) -> None:
    case = replace(CASES[name], batch=1, size=size, outer=32, counts=True)
    check(*operands(case), polyphase_triton.Tile(8, 16, 32, 32, warps=4))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("small", lambda made: {"small": made.small.float()}),
        ("small_weight", lambda made: {"small_weight": made.small_weight[:9]}),
        ("full_weight", lambda made: {"full_weight": made.full_weight[..., :8]}),
        ("full", lambda made: {"full": made.full[:, :9]}),
        ("border", lambda made: {"border": made.border[0]}),
        ("small and small_weight", lambda made: {"small": made.small.to(FP8)}),
    ],
)
def test_the_operand_at_fault_is_named(name: str, change: Any) -> None:
    made, _ = operands(Phases())
    with pytest.raises(ValueError, match=f"^{name}"):
        polyphase(made._replace(**change(made)), polyphase_triton.Tile(8, 8, 16, 32))


def test_what_no_tile_of_phases_takes_is_refused() -> None:
    """The other kernel's boxes are of three taps."""
    made, _ = operands(CASES["stride, 4×4"])
    with pytest.raises(ValueError, match=r"^Tile\(.* is of a kernel for windows of 3, got 4$"):
        polyphase(made, polyphase_gluon.Tile(16, 32, 3, 4))
    made, _ = operands(CASES["stride"])
    with pytest.raises(ValueError, match=r"^full must be"):
        polyphase(made._replace(full=made.full[:, :9]), polyphase_triton.Tile(8, 8, 16, 32))
    made, _ = operands(CASES["up alone"])
    with pytest.raises(
        ValueError, match=r"^held must be False of volumes, and where taps are left out \(window_of_3\)$"
    ):
        polyphase(made, polyphase_gluon.Tile(8, 32, 3, 4, held=True))


def test_statistics_need_whole_blocks() -> None:
    made, _ = operands(replace(CASES["stride"], counts=True))
    with pytest.raises(ValueError, match="blocks of 8 × 16 pixels, and the tile has 8 × 8"):
        polyphase(made, polyphase_triton.Tile(8, 8, 16, 32))
    with pytest.raises(ValueError, match="blocks of 8 × 16 pixels, and the tile has 4 × 16"):
        polyphase(made, polyphase_gluon.Tile(8, 32, 4, 4))
    assert all(tile.rows > 8 for tile in polyphase_gluon.candidates(made))


def test_weights_that_stay_need_a_multiprocessor_for_each_phase_and_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polyphase_gluon, "multiprocessors", lambda _: 3)
    made, _ = operands(Phases(1, (16, 16), 32, 0, 128, border=False))
    with pytest.raises(ValueError, match="a multiprocessor for each of 4 parts of an image"):
        polyphase(made, polyphase_gluon.Tile(8, 32, 3, 4, held=True))


def few_channels(
    case: Phases, dtype: torch.dtype = torch.float16, stored: torch.dtype | None = None
) -> tuple[Operands, Tensor]:
    """A map and a skip of few channels, which lie without gaps, as what is made of them."""
    made, buffer = operands(replace(case, alone=True), dtype, stored)
    assert made.full is not None
    return made._replace(full=made.full.contiguous()), buffer


@pytest.mark.parametrize(
    "change",
    [
        lambda made: {"full": made.full[..., :4]},
        lambda made: {"full": None, "full_weight": None},
        lambda made: {"small": made.small.repeat(1, 1, 1, 5), "small_weight": made.small_weight.repeat(1, 1, 5)},
        lambda made: {"window_of_3": True},
        lambda made: {"epilogue": replace(made.epilogue, statistics=True)},
    ],
    ids=["gaps", "no skip", "many channels", "a transposed window", "statistics"],
)
def test_strips_are_for_two_dense_maps_of_few_channels(change: Any) -> None:
    made, _ = few_channels(Phases(1, (6, 8), 16, 8, 8))
    tile, *_ = polyphase_narrow.candidates(made)
    other = made._replace(**change(made))
    assert not list(polyphase_narrow.candidates(other))
    with pytest.raises(ValueError, match=r"^this tile takes a small map of 64 channels and a full one, to 16"):
        polyphase_narrow.launch(other, tile)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("inner", "outer", "dtype", "stored"),
    [
        (16, 8, torch.float16, torch.float16),
        (40, 8, torch.float16, torch.float16),
        (32, 16, torch.float16, FP8),
        (32, 16, FP8, FP8),
        (64, 16, FP8, torch.float16),
    ],
)
def test_strips_of_few_channels_are_the_reference_s(
    monkeypatch: pytest.MonkeyPatch, inner: int, outer: int, dtype: torch.dtype, stored: torch.dtype
) -> None:
    """Less than a strip and several; with what a border adds and without; also with one multiprocessor for all."""
    if reason := supported(torch.cuda.get_device_capability(), FP8):
        pytest.skip(reason)
    cases = [
        few_channels(Phases(2, size, inner, outer, outer, border=border), dtype, stored)
        for size, border in (((3, 7), True), ((70, 131), True), ((200, 80), False))
    ]
    calls = [(made, buffer, tile) for made, buffer in cases for tile in polyphase_narrow.candidates(made)]
    assert len(calls) == 4 * len(cases)
    build_side_by_side([partial(polyphase, made, tile) for made, _, tile in calls])
    for call in calls:
        check(*call)
    monkeypatch.setattr(polyphase_narrow, "multiprocessors", lambda _: 1)
    for made, buffer, tile in calls:
        check(made, buffer, replace(tile, rows=16))


ON_GPU = {
    "odd": Phases(2, (13, 17), 48, 80, 80), "many tiles": Phases(3, (100, 87), 64, 64, 64),
    "two blocks": Phases(2, (17, 33), 128, 64, 144), "spread": Phases(2, (21, 40), 64, 32, 32),
    "spread, many tiles": Phases(4, (128, 120), 32, 0, 16),
    "spread, two chunks of the skip": Phases(2, (21, 40), 32, 64, 32),
    "pairs": Phases(2, (21, 40), 64, 32, 32, alone=True),
    "pairs, many tiles": Phases(3, (100, 87), 64, 32, 32, alone=True),
    "no skip": Phases(2, (16, 16), 96, 0, 64, border=False),
    "window of 3": Phases(2, (21, 19), 64, 0, 80, border=False, window_of_3=True),
    "window of 3, spread": Phases(2, (21, 19), 32, 0, 32, window_of_3=True), "stride": Phases(2, (13, 17), 0, 80, 208),
    "stride, many tiles": Phases(3, (150, 87), 0, 64, 128), "stride, few channels": Phases(2, (19, 23), 0, 32, 48),
    "stride, 4×4": Phases(2, (13, 17), 0, 80, 208, window=4),
    "stride, 4×4, many tiles": Phases(3, (150, 87), 0, 64, 64, window=4),
}  # fmt: skip
ENDED = ("odd", "spread", "window of 3", "stride", "stride, few channels", "stride, 4×4")  # one of each form


def check_every_tile(case: Phases, dtype: torch.dtype, stored: torch.dtype) -> None:
    for part in (dtype, stored):
        if reason := supported(torch.cuda.get_device_capability(), part):
            pytest.skip(reason)
    made, buffer = operands(case, dtype, stored)
    tiles = dict.fromkeys([*candidates(made), *polyphase_triton.candidates(made)])
    build_side_by_side([lambda tile=tile: polyphase(made, tile) for tile in tiles])  # type: ignore[misc]
    for tile in tiles:
        check(made, buffer, tile)


@pytest.mark.gpu
@pytest.mark.parametrize("counts", [False, True], ids=["", "statistics"])
@pytest.mark.parametrize(("dtype", "stored"), TYPES)
@pytest.mark.parametrize("case", ON_GPU.values(), ids=ON_GPU)
def test_tiles_store_what_references_do(case: Phases, dtype: torch.dtype, stored: torch.dtype, counts: bool) -> None:
    """Both kernels, twice each: a race answers otherwise the second time."""
    check_every_tile(replace(case, counts=counts), dtype, stored)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, FP8])
@pytest.mark.parametrize("name", ["many tiles", "two blocks", "pairs, many tiles", "stride, many tiles"])
def test_few_programs_make_all_tiles(monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype) -> None:
    """Seven multiprocessors: a program has several tiles, and weights that stay leave some without a program."""
    monkeypatch.setattr(polyphase_gluon, "multiprocessors", lambda _: 7)
    check_every_tile(replace(ON_GPU[name], counts=True), dtype, torch.float16)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", [NONE, Activation("leaky_relu", 0.1)], ids=str)
@pytest.mark.parametrize(("dtype", "stored"), TYPES)
@pytest.mark.parametrize("name", ENDED)
def test_tiles_end_as_references_do(name: str, dtype: torch.dtype, stored: torch.dtype, activation: Activation) -> None:
    """Beside ReLU, which all else here ends in, what else the passes put there."""
    check_every_tile(replace(ON_GPU[name], activation=activation), dtype, stored)


EXACT = 2e-12
SIZES = [(5, 7), (4, 6), (1, 3), (1, 1), (2, 1)]
Upsample = Callable[[Tensor], Tensor]


def normal(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def assert_exact(found: Tensor, wanted: Tensor) -> None:
    assert found.shape == wanted.shape
    error = (found - wanted).abs() / wanted.abs().amax()
    edges = [error[..., 0, :], error[..., -1, :], error[..., :, 0], error[..., :, -1]]
    for part in (error, error[..., 1:-1, 1:-1], *edges):
        assert part.numel() == 0 or float(part.max()) <= EXACT


def evaluate(made: Composition, small: Tensor, full: Tensor | None = None) -> Tensor:
    """A composition in its own precision, of small [N, in, h, w] and full [N, skip, 2 h, 2 w]."""
    y = phases_of(small, made.small) + made.bias[:, None, None]
    if full is not None and made.full is not None:
        y = y + functional.conv2d(full, made.full.permute(1, 2, 0).unflatten(2, (3, 3)), padding=1)
    return y if made.border is None else y + at_border(made.border, *y.shape[2:])


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("skip_channels", [0, 3])
@pytest.mark.parametrize("kind", ["transposed", "transposed, no bias", "nearest"])
def test_a_composition_is_the_layers_it_stands_for(kind: str, skip_channels: int, size: tuple[int, int]) -> None:
    height, width = size
    is_nearest, has_bias = kind == "nearest", kind != "transposed, no bias"
    inner, middle, outer = 6, 6 if is_nearest else 4, 5
    small = normal(3, inner, height, width)
    skip = normal(3, skip_channels, 2 * height, 2 * width) if skip_channels else None
    weight, bias = normal(outer, middle + skip_channels, 3, 3), normal(outer)
    up: Upsample
    if is_nearest:
        up = lambda x: functional.interpolate(x, scale_factor=2, mode="nearest")  # noqa: E731
        made = compose_nearest((weight, bias), inner)
    else:
        up_weight, up_bias = normal(inner, middle, 2, 2), normal(middle) if has_bias else None
        up = lambda x: functional.conv_transpose2d(x, up_weight, up_bias, stride=2)  # noqa: E731
        made = compose_transposed((up_weight, up_bias), (weight, bias))
    assert (made.border is None) == (kind != "transposed")
    both = torch.cat([up(small)] if skip is None else [skip, up(small)], 1)
    assert_exact(evaluate(made, small, skip), functional.conv2d(both, weight, bias, padding=1))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("window", "output_padding"), [(4, 0), (3, 1)])
def test_a_transposed_convolution_alone_is_its_phases(window: int, output_padding: int, size: tuple[int, int]) -> None:
    small, weight = normal(2, 4, *size), normal(4, 5, window, window)
    wanted = functional.conv_transpose2d(small, weight, None, 2, 1, output_padding)
    assert_exact(phases_of(small, phase_taps(weight)), wanted)


def test_what_does_not_compose_is_refused() -> None:
    with pytest.raises(ValueError, match="reads 4 channels, and 6 are up-sampled"):
        compose_nearest((normal(4, 4, 3, 3), normal(4)), 6)


def test_weights_in_fp8_carry_both_maps_scales() -> None:
    made = compose_transposed((normal(32, 16, 2, 2), normal(16)), (normal(16, 32, 3, 3), normal(16)))
    small, skip, out_scale = normal(2, 32, 5, 6), normal(2, 16, 10, 12) * 100, 0.5
    packed = pack(made, torch.float8_e4m3fn, (0.01, 1.0), out_scale)
    stored = [value.permute(0, 2, 3, 1).to(torch.float8_e4m3fn) for value in (small / 0.01, skip)]
    out, epilogue = torch.empty(2, 10, 12, 16), Epilogue(packed.scale, packed.bias)
    reference(
        Operands(epilogue, Outputs(out), stored[0], packed.weight, stored[1], packed.second_weight, packed.border)
    )
    wanted = evaluate(made, small, skip)
    error = (out.permute(0, 3, 1, 2).double() * out_scale - wanted).norm() / wanted.norm()
    assert 1e-3 < float(error) < 5e-2
