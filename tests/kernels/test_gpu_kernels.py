"""Every kernel, those in Gluon included, on a GPU against its reference: at odd sizes, with every end that it can have.

Each test compiles its tiles side by side; all take a minute or two on an H200.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources

from pipeline.compiler.ops import BY_NAME
from pipeline.kernels.common.activation import NONE, RELU, Activation
from pipeline.kernels.common.capability import reaching_views_barred
from pipeline.kernels.common.kernel_op import KernelOp
from tests.kernels import examples
from tests.kernels.kinds import FEW, GROUPS, KINDS, WIDE, Kind, activations_of, made_of, of_two_slices

pytestmark = pytest.mark.gpu

# Channels that fill no tile, then tiles enough that every program gets several: a race between two groups of warps
# shows only there.
ODD, MANY = examples.Layer(2, (13, 17), 48, 80), examples.Layer(3, (200, 173), 64, 64)
DTYPES = [pytest.param(examples.HALF, id="fp16"), pytest.param(examples.FP8, id="fp8")]
PRELU = Activation("prelu")
PARTS = {
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


def first_that_fits(made: examples.Example) -> Any:
    return next(tile for tile in made.candidates() if fits(made, tile))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", [ODD, MANY], ids=["odd size", "many tiles"])
@pytest.mark.parametrize("op", examples.PLAIN, ids=lambda op: op.name)
def test_tiles_store_what_references_do(op: KernelOp, layer: examples.Layer, dtype: torch.dtype) -> None:
    """Into slices of channels, with the pool where the kernel folds one."""
    made = examples.example(
        op, dtype, examples.for_kernel(op, examples.Layer(layer.batch, layer.size, layer.inner, layer.outer, pool=True))
    )
    examples.check_all([(made, tile) for tile in made.candidates()])


@pytest.mark.parametrize(("dtype", "stored"), examples.MIXED)
@pytest.mark.parametrize("layer", [ODD, MANY], ids=["odd size", "many tiles"])
@pytest.mark.parametrize("op", [op for op in examples.PLAIN if not op.reads_image], ids=lambda op: op.name)
def test_tiles_store_other_types(op: KernelOp, layer: examples.Layer, dtype: torch.dtype, stored: torch.dtype) -> None:
    """What a net asks for where layers in fp8 and in fp16 meet."""
    made = examples.example(op, dtype, examples.for_kernel(op, replace(layer, pool=True, stored_as=stored)))
    examples.check_all([(made, tile) for tile in made.candidates()])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [op for op in examples.PLAIN if op.pack], ids=lambda op: op.name)
def test_every_activation_is_the_reference_s(op: KernelOp, dtype: torch.dtype) -> None:
    """By the likeliest tile, without a pool, so that the pool's absence is seen as well."""
    ends = [activation for activation in examples.ACTIVE if not activation.by_channel or "slopes" in op.folds]
    layers = [
        examples.for_kernel(op, examples.Layer(2, (33, 29), 64, 64, activation=activation)) for activation in ends
    ]
    made = [examples.example(op, dtype, layer) for layer in layers]
    examples.check_all([(one, one.candidates()[0]) for one in made])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", [op for op in examples.PLAIN if "head" in op.folds], ids=lambda op: op.name)
def test_a_folded_head_stores_the_reference_s_logits(op: KernelOp, dtype: torch.dtype) -> None:
    """Alone, and beside the output, for few classes and for as many as fit."""
    alone = examples.example(op, dtype, examples.Layer(2, (33, 29), 64, 64, classes=8, stored=False, activation=NONE))
    beside = examples.example(op, dtype, examples.Layer(2, (33, 29), 64, 48, classes=2, activation=RELU))
    examples.check_all([(made, first_that_fits(made)) for made in (alone, beside)])


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
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("op", [op for op in examples.PLAIN if "residual" in op.folds], ids=lambda op: op.name)
def test_tiles_add_and_sum_as_references_do(op: KernelOp, part: str, dtype: torch.dtype, stored: torch.dtype) -> None:
    """At odd sizes, and with so many tiles that every program gets several; the same bits in two runs."""
    ended = replace(PARTS[part], stored_as=stored)
    layers = [replace(ended, batch=one.batch, size=one.size, inner=one.inner, outer=one.outer) for one in (ODD, MANY)]
    made = [examples.example(op, dtype, examples.for_kernel(op, layer)) for layer in layers]
    examples.check_all([(one, tile) for one in made for tile in one.candidates()])


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
