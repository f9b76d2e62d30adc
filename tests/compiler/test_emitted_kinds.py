"""No net asks a kernel for a combination of types and parts, or for an activation, that no example has.

A pass that gives a kernel something new to do fails here until the kernel's description and so the examples have it.
"""

import pytest

from pipeline.compiler.ops import BY_NAME
from tests.compiler.emitted import asked
from tests.compiler.nets import NETS
from tests.compiler.rewriting import rewritten
from tests.kernels.kinds import GROUPS, KINDS, TRIED, Kind

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> set[tuple[Kind, str]]:
    made = (rewritten(name) for name in NETS)
    return {one for known in made for one in asked(known.net, (known.batch,))}


def test_every_combination_has_an_example(found: set[tuple[Kind, str]]) -> None:
    """Of types read and stored, residuals, pools, statistics, slopes, heads and second inputs; and each activation."""
    assert {str(kind) for kind, _ in found} - {str(kind) for kind in KINDS} == set()
    assert {(kind.op, activation) for kind, activation in found} - TRIED == set()


def test_the_nets_ask_for_much_of_what_there_is(found: set[tuple[Kind, str]]) -> None:
    """So that what is collected isn't nothing: each kernel, and most of the mixtures of types."""
    assert {kind.op for kind, _ in found} == set(BY_NAME)
    assert {kind[1:3] for kind, _ in found} >= {("fp16", "fp8"), ("fp8", "fp16"), ("fp8", "fp8"), ("fp8", "fp32")}
    assert len({kind[:3] for kind, _ in found}) > len(GROUPS) / 2
