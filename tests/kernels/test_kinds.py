"""Each kind of call that a pass can make stores what its reference stores, and its tiles fit in shared memory."""

from dataclasses import replace

import pytest

from pipeline.compiler.ops import BY_NAME
from pipeline.kernels import conv3x3x3
from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.kernel_op import KernelOp, SecondSource
from pipeline.kernels.common.nhwc import shared_bytes
from pipeline.kernels.conv3x3.conv3x3_gluon import RESERVED_BYTES, candidates, shared_by
from pipeline.kernels.conv3x3.conv3x3_operands import STACKED, Operands
from tests.kernels.examples import PLAIN, Example
from tests.kernels.kind_examples import SMALL, made_of, small_tile
from tests.kernels.kinds import GROUPS, KINDS, Kind, activations_of, kind_of

# Those whose activations test_kernel_parity doesn't try.
OTHERS = [(op, activation) for op in BY_NAME.values() if op not in PLAIN for activation in activations_of(op)]


@pytest.mark.parametrize("group", GROUPS, ids=" ".join)
def test_every_kind_stores_what_the_reference_stores(group: tuple[str, str, str]) -> None:
    for kind in GROUPS[group]:
        made = made_of(kind)
        assert told(made) == kind
        made.poison()
        made.run(small_tile(made))
        made.check()


def told(made: Example) -> Kind:
    second, outputs = made.second or SecondSource(), made.outputs
    stored = {**vars(outputs), "result": outputs.out, "residual": made.epilogue.residual}
    given = {**stored, "slopes": made.epilogue.slopes, "second": second.map, "border": second.border}
    return kind_of(made.op, made.x.dtype, given)


@pytest.mark.parametrize(("op", "activation"), OTHERS, ids=lambda value: getattr(value, "name", ""))
def test_a_kernel_of_two_inputs_ends_in_any_activation(op: KernelOp, activation: Activation) -> None:
    kind = next(kind for kind in KINDS if kind.op == op.name and "fp8-residual" not in kind.parts)
    made = made_of(kind, SMALL, activation)
    made.poison()
    made.run(small_tile(made))
    made.check()


OF_GLUON = [kind for kind in KINDS if kind.op in ("conv3x3", "conv3x3x3")]
CHANNELS = [(16, 16), (32, 64), (64, 64), (80, 144), (256, 128)]


def operands_of(made: Example) -> Operands:
    return Operands(made.x, made.weight, made.epilogue, made.outputs)


@pytest.mark.parametrize(("inner", "outer"), CHANNELS)
def test_every_candidate_fits_on_hopper(inner: int, outer: int) -> None:
    for kind in OF_GLUON:
        made = made_of(kind, replace(SMALL, inner=inner, outer=outer))
        stacked = kind.op == "conv3x3x3" and outer <= STACKED and not any("residual" in part for part in kind.parts)
        for one in [made, replace(made, weight=conv3x3x3.stacked(made.weight))] if stacked else [made]:
            operands = operands_of(one)
            taken = [shared_by(tile, operands) for tile in candidates(operands)]
            assert taken
            assert max(taken) <= shared_bytes(made.x.device) - RESERVED_BYTES, kind


def test_what_is_stored_tells_how_many_boxes_there_are() -> None:
    """In fp16 beside a residual in fp8, as many as in fp16 beside one in fp16; in fp8 more."""
    layer = replace(SMALL, inner=64, outer=64)
    boxes = {}
    for stores, added in (("fp8", "fp8"), ("fp16", "fp8"), ("fp16", "fp16"), ("fp8", "fp16")):
        made = made_of(Kind("conv3x3", "fp8", stores, frozenset({"result", f"{added}-residual"})), layer)
        boxes[stores, added] = next(candidates(operands_of(made))).boxes
    assert boxes["fp8", "fp8"] == 8
    assert boxes["fp16", "fp8"] == boxes["fp16", "fp16"] == boxes["fp8", "fp16"] == 6
