"""No net asks a kernel for a combination of types and parts, or for an activation, that no example has.

A pass that gives a kernel something new to do fails here until the kernel's description and so the examples have it.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from pipeline.compiler.graph.exported_net import ExportedNet
from pipeline.compiler.graph.fp8_values import fp8_groups
from pipeline.compiler.graph.lowering import Plan, lower
from pipeline.compiler.ops import BY_NAME
from tests.compiler.nets import NETS
from tests.compiler.rewriting import Calls, layers, rewritten
from tests.kernels.kinds import GROUPS, KINDS, TRIED, Kind, kind_of

pytestmark = pytest.mark.slow


def plans(net: ExportedNet) -> Iterator[Plan]:
    """Nothing in fp8, all that may be, and all but for each second and each third layer."""
    names = [layer.name for layer in layers(net).values()]
    keeps = [[], *(names[first::step] for step in (2, 3) for first in range(step))]
    scales = [{value.name: 0.5 for group in fp8_groups(net, keep) for value in group} for keep in keeps]
    for known in {tuple(sorted(known)): known for known in [{}, *scales]}.values():
        yield Plan(known)


@torch.no_grad()
def asked(net: ExportedNet, inputs: tuple[Tensor, ...]) -> Iterator[tuple[Kind, str]]:
    """The kinds of a net's layers with their activations, of inputs [batch, ...] of its; nothing is computed."""
    for plan in plans(net):
        walk = Calls(lower(net, plan))
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            walk.run(*map(mode.from_tensor, inputs))
        yield from ((kind_of(layer.op, x.dtype, given), given["activation"]) for layer, x, given in walk.seen)


@pytest.fixture(scope="module")
def found() -> set[tuple[Kind, str]]:
    made = (rewritten(name) for name in NETS)
    return {one for known in made for one in asked(known.net, (known.batch,))}


def test_every_combination_has_an_example(found: set[tuple[Kind, str]]) -> None:
    assert {str(kind) for kind, _ in found} - {str(kind) for kind in KINDS} == set()
    assert {(kind.op, activation) for kind, activation in found} - TRIED == set()


def test_the_nets_ask_for_much_of_what_there_is(found: set[tuple[Kind, str]]) -> None:
    """So that what is collected isn't nothing: each kernel, and most of the mixtures of types."""
    assert {kind.op for kind, _ in found} == set(BY_NAME)
    assert {kind[1:3] for kind, _ in found} >= {("fp16", "fp8"), ("fp8", "fp16"), ("fp8", "fp8"), ("fp8", "fp32")}
    assert len({kind[:3] for kind, _ in found}) > len(GROUPS) / 2
