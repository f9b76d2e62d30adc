"""Every kernel, those in Gluon included, on a GPU against its reference: at odd sizes, with every end that it can have.

Each test compiles its tiles side by side; all take a minute or two on an H200.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from pipeline.compiler.ops import BY_NAME
from pipeline.compiler.tuning.autotune import build_side_by_side
from pipeline.kernels import conv3x3, conv_first, norm_pass, upconv2x2
from pipeline.kernels.common.activation import NONE, RELU, Activation
from pipeline.kernels.common.capability import reaching_views_barred, supported
from pipeline.kernels.common.kernel_op import KernelOp
from pipeline.kernels.conv3x3 import conv3x3_narrow
from pipeline.kernels.conv3x3.conv3x3_triton import Operands
from pipeline.kernels.norm_pass import NormPass
from pipeline.kernels.polyphase import candidates, polyphase
from tests.kernels import examples
from tests.kernels.examples import (
    FP8,
    HALF,
    TYPES,
    Layer,
    Phases,
    assert_near,
    check,
    check_all,
    example,
    for_kernel,
    operands,
)
from tests.kernels.kinds import FEW, GROUPS, KINDS, WIDE, Kind, activations_of, made_of, of_two_slices
from tests.kernels.test_norm_kernels import AFTER, LEAKY, After, convolution, head_of, normed, stored
from tests.kernels.test_other_convolutions import SLICED

pytestmark = pytest.mark.gpu

# Channels that fill no tile, then tiles enough that every program gets several: a race between two groups of warps
# shows only there.
ODD, MANY = examples.Layer(2, (13, 17), 272, 80), examples.Layer(3, (200, 173), 64, 64)
DTYPES = [pytest.param(examples.HALF, id="fp16"), pytest.param(examples.FP8, id="fp8")]
PRELU = Activation("prelu")
PARTS = {
    "pool": examples.Layer(pool=True),
    "residual": examples.Layer(residual=examples.HALF),
    "residual in fp8": examples.Layer(residual=examples.FP8),
    "statistics": examples.Layer(statistics=True, activation=NONE),
    "all": examples.Layer(activation=PRELU, statistics=True, residual=examples.HALF, pool=True),
}
OTHERS = [op for op in BY_NAME.values() if op not in examples.PLAIN and op.pack]  # the plain ones end in them above


@pytest.fixture(autouse=True)
def what_the_gpu_has(request: pytest.FixtureRequest) -> Iterator[None]:
    """Skip what this GPU can't run, with the reason; products in fp32 are exact, as the references need them."""
    given = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    in_fp8 = examples.FP8 if "fp8" in given.get("group", ()) else examples.HALF
    with examples.gpu_for(given.get("dtype", examples.HALF), given.get("stored", examples.HALF), in_fp8):
        yield


def fits(made: examples.Example, tile: Any) -> bool:
    try:
        made.run(tile)
    except OutOfResources:
        return False
    return True


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [op for op in examples.PLAIN if op.pack], ids=lambda op: op.name)
def test_every_activation_is_the_reference_s(op: KernelOp, dtype: torch.dtype) -> None:
    """By the likeliest tile, without a pool, so that the pool's absence is seen as well."""
    ends = [activation for activation in examples.ACTIVE if not activation.kind.by_channel or "slopes" in op.folds]
    layers = [examples.for_kernel(op, examples.Layer(2, (33, 29), 64, 64, activation=each)) for each in ends]
    made = [examples.example(op, dtype, layer) for layer in layers]
    examples.check_all([(one, one.candidates()[0]) for one in made])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [op for op in examples.PLAIN if "head" in op.folds], ids=lambda op: op.name)
def test_a_folded_head_stores_the_reference_s_logits(op: KernelOp, dtype: torch.dtype) -> None:
    """Alone, and beside the output, for few classes and for as many as fit."""
    alone = examples.example(op, dtype, examples.Layer(2, (33, 29), 64, 64, classes=8, stored=False, activation=NONE))
    beside = examples.example(op, dtype, examples.Layer(2, (33, 29), 64, 48, classes=2, activation=RELU))
    both = (alone, beside)
    examples.check_all([(made, next(tile for tile in made.candidates() if fits(made, tile))) for made in both])


def test_the_fast_kernels_are_built_here() -> None:
    """Without them the tests above check the plain ones alone."""
    assert reaching_views_barred() is None
    tiles = {
        tile.kernel
        for op in examples.PLAIN
        for tile in examples.example(op, examples.HALF, examples.for_kernel(op, ODD)).candidates()
    }
    assert {"conv3x3_gluon", "upconv2x2_gluon"} <= tiles


@pytest.mark.parametrize(("dtype", "stored"), examples.TYPES)
@pytest.mark.parametrize("layer", [ODD, MANY], ids=["odd size", "many tiles"])
@pytest.mark.parametrize(
    ("op", "part"),
    [(op, part) for op in examples.PLAIN for part in PARTS if part == "pool" or "residual" in op.folds],
    ids=lambda value: getattr(value, "name", value),
)
def test_tiles_store_what_references_do(
    op: KernelOp, part: str, layer: examples.Layer, dtype: torch.dtype, stored: torch.dtype
) -> None:
    """Into slices of channels, with the parts that the kernel folds; the same bits in two runs."""
    sizes = {name: getattr(layer, name) for name in ("batch", "size", "inner", "outer")}
    layer = replace(PARTS[part], **sizes, stored_as=stored)
    made = examples.example(op, dtype, examples.for_kernel(op, layer))
    examples.check_all([(made, tile) for tile in made.candidates()])


@pytest.mark.parametrize(("dtype", "stored"), examples.TYPES)
@pytest.mark.parametrize("outer", [16, 32, 64])
@pytest.mark.parametrize("op", [op for op in examples.PLAIN if "statistics" in op.folds], ids=lambda op: op.name)
def test_tiles_sum_as_the_reference_does(op: KernelOp, outer: int, dtype: torch.dtype, stored: torch.dtype) -> None:
    """Also those for few channels, at sizes that no block divides."""
    layer = examples.Layer(inner=32, outer=outer, activation=NONE, statistics=True, stored_as=stored)
    layers = [replace(layer, batch=2, size=(13, 18)), replace(layer, batch=3, size=(200, 173))]
    made = [examples.example(op, dtype, examples.for_kernel(op, one)) for one in layers]
    examples.check_all([(one, tile) for one in made for tile in one.candidates()])


def of_kind(kind: Kind) -> Iterator[examples.Example]:
    """A layer of many channels, and one of few where a kernel of its own takes those."""
    yield made_of(kind, WIDE)
    if kind.op == "conv3x3" and not kind.parts & {"logits", "pooled", "slopes"}:
        yield made_of(kind, FEW)
    added = any("residual" in part for part in kind.parts)
    if kind.op == "conv3x3x3" and not added and reaching_views_barred() is None:
        yield of_two_slices(made_of(kind, FEW))


def likeliest(made: examples.Example) -> list[tuple[examples.Example, Any]]:
    return [(made, tile) for tile in {type(tile): tile for tile in reversed(made.candidates())}.values()]


@pytest.mark.parametrize("group", GROUPS, ids=" ".join)
def test_every_kind_stores_what_the_reference_stores_on_a_gpu(group: tuple[str, str, str]) -> None:
    """All parts that a kernel folds, in each combination, at a size that no tile divides."""
    examples.check_all([case for kind in GROUPS[group] for made in of_kind(kind) for case in likeliest(made)])


@pytest.mark.parametrize("op", OTHERS, ids=lambda op: op.name)
def test_a_kernel_of_two_inputs_ends_in_any_activation_on_a_gpu(op: KernelOp) -> None:
    kind = next(kind for kind in KINDS if kind.op == op.name)
    examples.check_all([case for end in activations_of(op) for case in likeliest(made_of(kind, WIDE, end))])


# Channels and columns that fill no tile; then tiles enough that every program gets several.
LAYERS = [
    Layer(2, (24, 17), 48, 80, slices=3, activation=LEAKY, residual=HALF),
    Layer(2, (20, 22), 48, 80, slices=3, residual=HALF),  # slices that end within a tile
    Layer(2, (40, 72), 64, 64, slices=10, statistics=True),
    Layer(3, (64, 48), 320, 128, slices=4, statistics=True, activation=PRELU),
]
FEW_OUT = [
    Layer(2, (24, 17), 48, 16, slices=4, activation=LEAKY),
    Layer(2, (20, 22), 48, 24, slices=4),
    Layer(2, (40, 72), 32, 32, slices=12, statistics=True),
    Layer(1, (128, 128), 64, 32, slices=10, statistics=True, activation=PRELU),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("layer", "together"), [*((one, False) for one in LAYERS), *((one, True) for one in FEW_OUT)])
def test_a_volume_s_convolution_on_a_gpu(layer: Layer, together: bool, dtype: torch.dtype) -> None:
    """Slice by slice, or of few channels two slices at a time; also stored in the other type, where fp8 is read."""
    if together and (reason := reaching_views_barred()):
        pytest.skip(reason)
    layer = replace(layer, residual=dtype if layer.residual else None)
    if dtype == FP8:  # in a buffer of others', channels begin at multiples of 16 bytes
        layer = replace(layer, outer=-(-layer.outer // 16) * 16)
    for kept_as, op in product({dtype, HALF}, (conv3x3.VOLUME_OP, conv3x3.WIDE_VOLUME_OP)):
        made = example(op, dtype, replace(layer, stored_as=kept_as))
        made = of_two_slices(made) if together else made
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


@pytest.mark.parametrize(("inner", "outer", "sums"), [(1, 32, True), (4, 32, True), (1, 16, False)])
def test_the_first_convolution_of_volumes_on_a_gpu(inner: int, outer: int, sums: bool) -> None:
    made = example(conv_first.VOLUME_OP, HALF, Layer(2, (40, 33), inner, outer, slices=5, statistics=sums))
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


SILU = Activation("silu")
# Sizes, widths of groups, and what a pass ends in: phases of a map, logits, a scale to fp8 before or after activations,
# and groups, of which the last map has bands where they are wide.
PASSES = [
    *product([(3, 26, 34, 24), (2, 64, 64, 256), (2, 200, 174, 80)], [1], [(LEAKY, HALF, 2, 0), (LEAKY, FP8, 2, 0)]),
    *product([(3, 26, 34, 24), (2, 200, 174, 32), (1, 512, 512, 64)], [1, 4], [(LEAKY, HALF, 1, n) for n in (1, 3, 8)]),
    *product([(3, 26, 34, 64)], [1, 4, 32], [(end, FP8, 1, 0) for end in (NONE, RELU, LEAKY, Activation("elu", 0.5))]),
    *product(
        [(3, 26, 34, 64), (2, 200, 174, 192), (1, 768, 768, 64)], [2, 4, 8, 16, 32, 64],
        [(LEAKY, HALF, 1, 0), (SILU, HALF, 1, 0), (SILU, FP8, 1, 0)],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("size", "group_width", "ends"), PASSES, ids=str)
def test_every_tile_of_a_pass_on_a_gpu(
    size: tuple[int, ...], group_width: int, ends: tuple[Activation, torch.dtype, int, int]
) -> None:
    """By itself, and where the statistics are merged first; the same bits in two runs."""
    activation, dtype, phases, classes = ends
    if reason := supported(torch.cuda.get_device_capability(), dtype):
        pytest.skip(reason)
    x, counted, how = normed(size, phases=phases, group_width=group_width)
    how = replace(how, activation=activation, scale=0.02 if dtype == FP8 else 1.0)
    how = replace(how, head=head_of(classes, size[-1]) if classes else None)
    wanted = stored(how, x, counted, dtype, None)
    for tile in norm_pass.candidates(counted):
        first, again = (stored(how, x, counted, dtype, tile) for _ in range(2))
        assert_near(first, wanted, dtype)
        assert torch.equal(first.float(), again.float())


@pytest.mark.parametrize(
    ("inner", "outer", "group_width"), [(32, 32, 1), (24, 16, 1), (64, 8, 1), (32, 32, 4), (64, 8, 16), (16, 16, 2)]
)
@pytest.mark.parametrize("activation", [NONE, RELU, LEAKY], ids=str)
@pytest.mark.parametrize("after", [After(), After(HALF)], ids=str)
def test_layers_norm_on_gpus(after: After, activation: Activation, inner: int, outer: int, group_width: int) -> None:
    """By every tile that the tuner would try, at a size that no block divides; the same bits in two runs."""
    check_every_tile(after, activation, (inner, outer), group_width)


@pytest.mark.parametrize(("inner", "outer"), [(32, 32), (64, 8)])
@pytest.mark.parametrize("after", AFTER, ids=str)
def test_the_convolution_that_norms_ends_in_all_that_it_may_on_a_gpu(after: After, inner: int, outer: int) -> None:
    """Without sums, with its own activation, with a residual in fp8, of which 16 channels are the fewest."""
    if after.residual == FP8 and (reason := supported(torch.cuda.get_device_capability(), FP8)):
        pytest.skip(reason)
    check_every_tile(after, LEAKY, (inner, max(outer, 16) if after.residual == FP8 else outer), 4)


@pytest.mark.parametrize("inner", [16, 32])
@pytest.mark.parametrize("activation", [NONE, LEAKY], ids=str)
def test_narrow_volumes_norm_what_they_read_on_a_gpu(activation: Activation, inner: int) -> None:
    """Two slices at a time, with sums of what they make; the same bits in two runs."""
    if reason := reaching_views_barred():
        pytest.skip(reason)
    operands, counted, how = convolution((2, 4 * 24, 77, inner), 16)
    weight = conv3x3.stacked(examples.values(27, 16, inner) * 0.1)
    operands = operands._replace(weight=weight, epilogue=replace(operands.epilogue, slices=4))
    check_tiles(conv3x3_narrow.volume_candidates(operands), operands, counted, replace(how, activation=activation))


def check_every_tile(after: After, activation: Activation, channels: tuple[int, int], group_width: int) -> None:
    if reason := reaching_views_barred():
        pytest.skip(reason)
    inner, outer = channels
    operands, counted, how = convolution((2, 77, 90, inner), outer, group_width, after)
    tiles = conv3x3_narrow.candidates(operands.x, outer, ends=bool(operands.epilogue.parts))
    check_tiles(tiles, operands, counted, replace(how, activation=activation))


def check_tiles(tiles: Iterable[conv3x3.NormingTile], operands: Operands, counted: Tensor, how: NormPass) -> None:
    wanted = [part.clone() for part in run(operands, counted, how, None)]
    for tile in tiles:
        first = [part.clone() for part in run(operands, counted, how, tile)]
        again = run(operands, counted, how, tile)
        for one, other, want in zip(first, again, wanted, strict=True):
            assert torch.equal(one, other)
            assert float((one.float() - want.float()).norm() / want.float().norm()) < 4e-3


def run(operands: Operands, counted: Tensor, how: NormPass, tile: conv3x3.NormingTile | None) -> list[Tensor]:
    """The output and its statistics by a tile, or by the reference, over outputs of NaN."""
    parts = [part for part in operands.outputs.given.values() if part.fill_(torch.nan) is not None]
    if tile is None:
        conv3x3.normed_reference(operands, counted, how)
    else:
        conv3x3.normed_conv3x3(operands, counted, how, tile)
    return parts
