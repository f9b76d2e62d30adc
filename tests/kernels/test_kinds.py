"""Each kind of call that a pass can make stores what its reference stores: in Triton's interpreter, or on a GPU."""

import pytest

from pipeline.compiler.ops import BY_NAME
from pipeline.kernels.common.activation import Activation
from pipeline.kernels.common.kernel_op import KernelOp, SecondSource
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
