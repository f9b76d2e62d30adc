"""What makes Triton's interpreter twice as quick, and right: a fixture for the rooms that run kernels in it."""

import operator
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

EXACT: dict[str, Callable[[Any, Any], Any]] = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}


def refuse_overflow(_: object, first: Any, second: Any, operation: Callable[..., Any]) -> None:
    """Triton's own check of every sum, difference and product of whole numbers, by numpy.

    Args:
        first: its left side, a tensor of the interpreter's.
        second: its right side.
        operation: "add", "sub" or "mul" of Triton's.

    Raises:
        AssertionError: the result isn't within the operands' type.
    """
    kind = first.type.scalar
    if kind.int_bitwidth >= 64:
        return
    exact = EXACT[operation.__name__](*(side.handle.data.astype(np.int64) for side in (first, second)))
    inside = exact.min() >= kind.get_int_min_value() and exact.max() <= kind.get_int_max_value()
    assert inside, f"int{kind.int_bitwidth} overflow detected for operation {operation.__name__}"


def once(type_of: Callable[[Any], np.dtype]) -> Callable[[Any], np.dtype]:
    """`type_of`, a function of one of Triton's types, that knows what it said of a type of that name."""
    known: dict[str, np.dtype] = {}

    def remembered(kind: Any) -> np.dtype:
        if kind.name not in known:
            known[kind.name] = type_of(kind)
        return known[kind.name]

    return remembered


def telling_truth(compare: Callable[..., Any]) -> Callable[..., Any]:
    """`compare`, one of the interpreter's builder, whose answer is of Triton's type of truth values.

    It is of its operands' type in Triton up to 3.9, whose `create_splat` then makes int32 of the truth of a scalar,
    which is no mask.
    """

    def compared(builder: Any, first: Any, second: Any) -> Any:
        from triton.language import int1

        told = compare(builder, first, second)
        return type(told)(told.data, int1)

    return compared


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter() -> Iterator[None]:
    """Its check of overflows takes four tenths of the time, a table of types that is made anew at each step another."""
    # Not before the tests' conftest.py has asked for the interpreter.
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("TRITON_INTERPRET") == "1":
            patch.setattr(TritonSemantic, "binary_op_sanitize_overflow_impl", refuse_overflow)
            patch.setattr(interpreter, "_get_np_dtype", once(interpreter._get_np_dtype))
            builder = interpreter.InterpreterBuilder
            for name in [name for name in dir(builder) if name.startswith(("create_icmp", "create_fcmp"))]:
                patch.setattr(builder, name, telling_truth(getattr(builder, name)))
        yield
