"""On a GPU each kind of call that a pass can make stores what its reference stores, twice, bit for bit.

By the likeliest tile of each kernel that would be tried, compiled side by side; every tile of every kernel is tried in
test_gpu_kernels and test_gpu_epilogues.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from pipeline.compiler.ops import BY_NAME
from pipeline.kernels.common.capability import reaching_views_barred, supported
from pipeline.kernels.common.kernel_op import KernelOp
from tests.kernels.examples import FP8, PLAIN, Example, check_all
from tests.kernels.kind_examples import FEW, WIDE, made_of, of_two_slices
from tests.kernels.kinds import GROUPS, KINDS, Kind, activations_of
from tests.kernels.test_gpu_kernels import what_the_gpu_has

__all__ = ["what_the_gpu_has"]  # a fixture, which every test here asks for by itself
pytestmark = pytest.mark.gpu
OTHERS = [op for op in BY_NAME.values() if op not in PLAIN and op.pack]  # test_gpu_kernels ends the plain ones


@pytest.fixture(autouse=True)
def in_fp8(request: pytest.FixtureRequest) -> None:
    """Skip what this GPU can't read or store, with the reason."""
    given = request.node.callspec.params
    if "fp8" in given.get("group", ()) and (reason := supported(torch.cuda.get_device_capability(), FP8)):
        pytest.skip(reason)


def of_kind(kind: Kind) -> Iterator[Example]:
    """A layer of many channels, and one of few where a kernel of its own takes those."""
    yield made_of(kind, WIDE)
    if kind.op == "conv3x3" and not kind.parts & {"logits", "pooled", "slopes"}:
        yield made_of(kind, FEW)
    added = any("residual" in part for part in kind.parts)
    if kind.op == "conv3x3x3" and not added and reaching_views_barred() is None:
        yield of_two_slices(made_of(kind, FEW))


def likeliest(made: Example) -> list[tuple[Example, Any]]:
    """The first candidate of each kernel."""
    return [(made, tile) for tile in {type(tile): tile for tile in reversed(made.candidates())}.values()]


@pytest.mark.parametrize("group", GROUPS, ids=" ".join)
def test_every_kind_stores_what_the_reference_stores_on_a_gpu(group: tuple[str, str, str]) -> None:
    """All parts that a kernel folds, in each combination, at a size that no tile divides."""
    check_all([case for kind in GROUPS[group] for made in of_kind(kind) for case in likeliest(made)])


@pytest.mark.parametrize("op", OTHERS, ids=lambda op: op.name)
def test_a_kernel_of_two_inputs_ends_in_any_activation_on_a_gpu(op: KernelOp) -> None:
    kind = next(kind for kind in KINDS if kind.op == op.name)
    check_all([case for end in activations_of(op) for case in likeliest(made_of(kind, WIDE, end))])
