"""What makes many exports of small nets quick: what torch and onnxscript make anew for each is made once."""

import copy
import typing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, wraps
from typing import Any

import pytest
import torch
import torch.onnx
from torch._inductor.runtime import triton_compat
from torch._subclasses.fake_impls import op_implementations_dict as fakes
from torch.export import exported_program
from torch.fx import _lazy_graph_module

Override = Callable[[dict[Any, Any]], AbstractContextManager[None]]


def install(patch: pytest.MonkeyPatch) -> None:
    """Have exports to torch.export and to ONNX remember what doesn't depend on the net."""
    # Each export of torch 2.12 asks some twelve thousand operators again whether they are composed of others.
    name = "_collect_all_valid_cia_ops"
    patch.setattr(exported_program, name, cache(getattr(exported_program, name)))
    # It gives each of them some twenty kernels, by a function whose annotations are made anew at each call;
    # `typing` remembers what it made of them, `collections.abc` doesn't.
    patch.setattr(torch._ops, "Callable", typing.Callable)
    name = "_override_composite_implicit_decomp"
    patch.setattr(exported_program, name, remembered(getattr(exported_program, name)))
    patch.setattr(torch.onnx, "export", with_one_registry(torch.onnx.export, patch))
    # An export changes its graph in a dozen steps, and for each makes a program that the next throws away.
    patch.setattr(_lazy_graph_module, "_use_lazy_graph_module_flag", True)
    # Inductor names its caches by a digest of all of Triton, half a gigabyte.
    patch.setattr(triton_compat, "triton_key", lambda: "the Triton of this run")


def remembered(override: Override) -> Override:
    """Torch's own change of what composed operators do during an export, of which it makes some twenty kernels each.

    What came of an operator the first time is put into its tables again, as long as it has the kernels that it had
    then, and is to do the same.
    """
    known: dict[Any, tuple[Any, dict[Any, Any], dict[Any, Any], Any]] = {}

    @contextmanager
    def overridden(asked: dict[Any, Any]) -> Iterator[None]:
        before = {op: op.py_kernels.copy() for op in asked}
        faked = {op for op in asked if op in fakes}  # by torch itself
        fresh = {op: what for op, what in asked.items() if op in faked or known.get(op, ())[:2] != (what, before[op])}
        old = asked.keys() - fresh.keys()
        with override(fresh):
            known.update((op, (fresh[op], before[op], op.py_kernels.copy(), fakes[op])) for op in fresh.keys() - faked)
            for op in old:
                put(op, known[op][2])
                fakes[op] = known[op][3]
            try:
                yield
            finally:
                for op in old:
                    put(op, before[op])
                    fakes.pop(op, None)

    return overridden


def put(op: Any, kernels: dict[Any, Any]) -> None:
    """Have an operator these kernels and no others."""
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()


def with_one_registry(export: Callable[..., Any], patch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`torch.onnx.export`, which reads the sources of some five hundred functions of onnxscript for each net."""

    @wraps(export)
    def exported(*given: Any, **named: Any) -> Any:
        from torch.onnx._internal.exporter._registration import ONNXRegistry  # takes seconds

        if not hasattr(ONNXRegistry.from_torchlib, "read"):
            patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(copies(ONNXRegistry.from_torchlib)))
        return export(*given, **named)

    return exported


def copies(make: Callable[..., Any]) -> Callable[..., Any]:
    """A registry that a caller may add to, of what was read for the same arguments before."""
    read = cache(make)

    def registry(*given: Any, **named: Any) -> Any:
        found = copy.copy(read(*given, **named))
        found.functions = {name: [*functions] for name, functions in found.functions.items()}
        return found

    registry.read = read  # type: ignore[attr-defined]
    return registry
