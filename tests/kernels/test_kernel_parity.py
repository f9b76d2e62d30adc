"""Every kernel against its reference: in Triton's interpreter, or on the GPU where there is one."""

from dataclasses import replace

import pytest
import torch

from pipeline.compiler.ops import BY_NAME
from pipeline.kernels import conv3x3
from pipeline.kernels.common.activation import NONE, Activation
from pipeline.kernels.common.epilogue import Epilogue, Outputs
from pipeline.kernels.common.kernel_op import KernelOp, SecondSource
from pipeline.kernels.common.nhwc import shared_bytes
from pipeline.kernels.conv3x3 import conv3x3_triton
from pipeline.kernels.conv3x3.conv3x3_gluon import RESERVED_BYTES, candidates, shared_by
from pipeline.kernels.conv3x3.conv3x3_triton import STACKED, Operands
from tests.kernels import examples
from tests.kernels.kinds import BY_ROWS, GROUPS, KINDS, SMALL, Kind, activations_of, kind_of, made_of, small_tile

TILE = conv3x3_triton.Tile(8, 16, 32, 32, warps=4)


def name_of(op: KernelOp) -> str:
    return op.name


@pytest.mark.parametrize("dtype", [examples.HALF, examples.FP8])
@pytest.mark.parametrize(
    "layer", [examples.Layer(1, (9, 17)), examples.Layer(3, (2, 6), 48, 80)], ids=["odd", "three images"]
)
@pytest.mark.parametrize("op", examples.PLAIN, ids=name_of)
def test_a_kernel_stores_what_its_reference_stores(op: KernelOp, layer: examples.Layer, dtype: torch.dtype) -> None:
    """It reads a slice of channels and stores into one, whatever the size, and leaves the other channels alone."""
    if op.name in BY_ROWS:  # the interpreter walks over each row's windows
        layer = replace(layer, size=(3 if layer.batch == 1 else 1, layer.size[1]))
    made = examples.example(op, dtype, examples.for_kernel(op, layer))
    made.run(small_tile(made))
    made.check()


@pytest.mark.parametrize("activation", examples.ACTIVE, ids=str)
def test_an_activation_keeps_a_nan(activation: Activation) -> None:
    x, weight, bias = examples.values(1, 8, 16, 32), examples.values(9, 32, 32), torch.zeros(32, device=examples.DEVICE)
    x[0, 4, 4, 0] = float("nan")
    outputs, wanted = (
        Outputs(examples.poisoned(1, 8, 16, 32)),
        Outputs(torch.zeros(1, 8, 16, 32, device=examples.DEVICE, dtype=examples.HALF)),
    )
    epilogue = Epilogue(bias=bias, activation=activation, slopes=examples.slopes_of(activation, 32))
    conv3x3.conv3x3(x, weight, epilogue, outputs, TILE)
    conv3x3.reference(x, weight, epilogue, wanted)
    assert int(outputs.out.isnan().sum()) == 9 * 32
    assert torch.equal(outputs.out.isnan(), wanted.out.isnan())


def test_convolution_of_infinities_has_the_infinities_and_nans_of_the_reference() -> None:
    """Infinities spread over their 3×3 neighbourhood and no further, and opposite ones meet as NaN."""
    x = examples.values(1, 9, 18, 16)
    x[0, 4, 4, 0], x[0, 4, 5, 0], x[0, 0, 17, 3] = float("inf"), float("-inf"), float("inf")
    weight, epilogue = examples.values(9, 32, 16), Epilogue(bias=torch.zeros(32, device=examples.DEVICE))
    outputs, wanted = Outputs(examples.poisoned(1, 9, 18, 32)), Outputs(examples.poisoned(1, 9, 18, 32))
    conv3x3.conv3x3(x, weight, epilogue, outputs, replace(TILE, depth=16))
    conv3x3.reference(x, weight, epilogue, wanted)
    assert outputs.out is not None
    assert wanted.out is not None
    assert torch.equal(outputs.out.isnan(), wanted.out.isnan())
    assert outputs.out.isnan().any()
    assert torch.equal(outputs.out.isinf(), wanted.out.isinf())
    examples.assert_near(outputs.out, wanted.out, examples.HALF)


def test_fp8_saturates_at_its_largest_value() -> None:
    x = examples.values(1, 8, 16, 32, dtype=examples.FP8)
    bias = torch.tensor([1e4, -1e4, 448.0, 0.0] * 8, device=examples.DEVICE)
    outputs = Outputs(examples.poisoned(1, 8, 16, 32, dtype=examples.FP8))
    weight = torch.zeros(9, 32, 32, device=examples.DEVICE).to(examples.FP8)
    conv3x3.conv3x3(x, weight, Epilogue(bias=bias, activation=NONE), outputs, TILE)
    assert outputs.out.float()[0, 3, 5, :4].tolist() == [448.0, -448.0, 448.0, 0.0]


@pytest.mark.parametrize("group", GROUPS, ids=" ".join)
def test_every_kind_stores_what_the_reference_stores(group: tuple[str, str, str]) -> None:
    for kind in GROUPS[group]:
        made = made_of(kind)
        assert told(made) == kind
        made.poison()
        made.run(small_tile(made))
        made.check()


def told(made: examples.Example) -> Kind:
    second, outputs = made.second or SecondSource(), made.outputs
    stored = {**vars(outputs), "result": outputs.out, "residual": made.epilogue.residual}
    given = {**stored, "slopes": made.epilogue.slopes, "second": second.map, "border": second.border}
    return kind_of(made.op, made.x.dtype, given)


@pytest.mark.parametrize("op", BY_NAME.values(), ids=name_of)
def test_a_kernel_ends_in_any_activation(op: KernelOp) -> None:
    kind = next(kind for kind in KINDS if kind.op == op.name and "fp8-residual" not in kind.parts)
    for activation in activations_of(op):
        made = made_of(kind, SMALL, activation)
        made.poison()
        made.run(small_tile(made))
        made.check()


OF_GLUON = [kind for kind in KINDS if kind.op in ("conv3x3", "conv3x3x3")]
CHANNELS = [(16, 16), (32, 64), (64, 64), (80, 144), (256, 128)]


@pytest.mark.parametrize(("inner", "outer"), CHANNELS)
def test_every_candidate_fits_on_hopper(inner: int, outer: int) -> None:
    for kind in OF_GLUON:
        made = made_of(kind, replace(SMALL, inner=inner, outer=outer))
        stacked = kind.op == "conv3x3x3" and outer <= STACKED and not any("residual" in part for part in kind.parts)
        for one in [made, replace(made, weight=conv3x3.stacked(made.weight))] if stacked else [made]:
            operands = Operands(one.x, one.weight, one.epilogue, one.outputs)
            taken = [shared_by(tile, operands) for tile in candidates(operands)]
            assert taken
            assert max(taken) <= shared_bytes(made.x.device) - RESERVED_BYTES, kind
