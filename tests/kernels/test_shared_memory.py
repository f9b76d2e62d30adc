"""Tiles of `conv3x3_gluon` fit in shared memory whatever types are read, added and stored.

That what is reckoned is what the compiler takes, test_kernels_compile shows of mixed types.
"""

from dataclasses import replace

import pytest

from pipeline.kernels import conv3x3x3
from pipeline.kernels.common.nhwc import shared_bytes
from pipeline.kernels.conv3x3.conv3x3_gluon import RESERVED_BYTES, candidates, shared_by
from pipeline.kernels.conv3x3.conv3x3_operands import STACKED, Operands
from tests.kernels.examples import Example
from tests.kernels.kind_examples import SMALL, made_of
from tests.kernels.kinds import KINDS, Kind

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
