"""Triton's interpreter and torch's reader of graphs, without work whose result is known or unused; answers stay."""

import inspect
import typing
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch._export.serde import schema, serialize
from triton.language import int1, tensor
from triton.language.core import is_builtin
from triton.runtime import interpreter

KNOWN: dict[str, np.dtype[Any]] = {}  # by the name of Triton's type, by which Triton compares types
of_any_axis, of_any_type = interpreter.ReduceOps.generic_reduce, interpreter._get_np_dtype
of_operands_type = interpreter.InterpreterBuilder.binary_op


def dtype_of(kind: Any) -> np.dtype[Any]:
    """Return numpy's type for Triton's, which the interpreter looks for in a new table at each operation."""
    if kind.name not in KNOWN:
        KNOWN[kind.name] = of_any_type(kind)
    return KNOWN[kind.name]


def binary_op(self: Any, *operands: Any) -> Any:
    """Return truth as int1; the interpreter makes integers of a scalar's, which Triton 3.9 takes for no mask."""
    made = of_operands_type(self, *operands)
    return type(made)(made.data, int1) if made.data.dtype == bool else made


def reduce(self: Any, given: tuple[tensor, ...]) -> list[tensor]:
    """Combine whole slices along the axis, which the interpreter does element by element."""
    if self.axis is None:
        found: list[tensor] = of_any_axis(self, given)
        return found
    kinds = [part.dtype for part in given]
    rows = zip(*(np.moveaxis(part.handle.data, self.axis, 0) for part in given), strict=True)
    first, *others = [tuple(map(self.to_tensor, row, kinds)) for row in rows]
    for row in others:
        made = self.combine_fn.fn(*first, *row)
        values = made if isinstance(made, tuple) else (made,)
        first = tuple(self.to_tensor(value.handle.data, kind) for value, kind in zip(values, kinds, strict=True))
    shape = list(given[0].handle.data.shape)
    shape[self.axis : self.axis + 1] = [1] if self.keep_dims else []
    return [self.to_tensor(part.handle.data.reshape(shape), kind) for part, kind in zip(first, kinds, strict=True)]


@cache
def builtins_of(package: Any) -> list[str]:
    return [name for name, member in inspect.getmembers(package) if is_builtin(member)]


def patch_builtins(package: Any, *given: Any) -> None:
    """Replace what the interpreter has its own of, which it looks for among all names at each launch."""
    for name in builtins_of(package):
        if is_builtin(member := getattr(package, name)):  # none of another launch's, nor of a package seen before
            interpreter._patch_attr(package, name, member, *given)


@cache
def hints_of(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, vars(schema))


def install() -> None:
    """Have this process interpret and load so."""
    builder: Any = interpreter.interpreter_builder
    # Sums are made once more in 64 bits to look for an overflow, of which only Triton's debug mode tells.
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)
    interpreter._get_np_dtype = dtype_of
    interpreter.InterpreterBuilder.binary_op = binary_op
    interpreter._patch_builtin = patch_builtins
    interpreter.ReduceOps.generic_reduce = reduce
    # torch.export.load evaluates a class's annotations anew for each value of it in the file.
    hints = {"get_type_hints": lambda kind, globalns: hints_of(kind)}
    loader: Any = serialize
    loader.typing = SimpleNamespace(**{**vars(typing), **hints})
