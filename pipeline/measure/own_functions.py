"""The functions that measure and check a stage, as they are: another one in a place of theirs is seen."""

import resource
import sys
import time
from collections.abc import Iterator
from types import FunctionType, ModuleType

import torch
from torch import Tensor

ROOMS = ("pipeline.measure.", "pipeline.worker.", "pipeline.records.", "pipeline.protocol", "models.")
# Others' functions through which an answer is read, timed and asked for its memory.
BORROWED: tuple[tuple[object, tuple[str, ...]], ...] = (
    (time, ("perf_counter", "process_time")),
    (torch, ("equal", "isfinite", "cat", "inference_mode")),
    (torch.cuda, ("synchronize", "Event", "max_memory_allocated", "max_memory_reserved", "memory_stats")),
    (resource, ("getrusage",)),
    (Tensor, ("cpu", "float", "double", "clone", "copy_", "view", "sum")),
)
METHODS = (FunctionType, staticmethod, classmethod, property)


def own_functions() -> dict[str, tuple[object, object]]:
    """Each by its name, with its code: whatever the modules of `ROOMS` hold now, and what they borrow."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith(ROOMS) and isinstance(module, ModuleType):
            found.update(dict(_held(module)))
    for owner, names in BORROWED:
        found.update({f"{getattr(owner, '__name__', owner)}.{name}": _seen(getattr(owner, name)) for name in names})
    return found


def _held(module: ModuleType) -> Iterator[tuple[str, tuple[object, object]]]:
    """What a module's names stand for, and the methods of its own classes."""
    for name, value in list(vars(module).items()):
        if name.startswith("__"):
            continue
        yield f"{module.__name__}.{name}", _seen(value)
        if isinstance(value, type) and value.__module__ == module.__name__:
            methods = ((key, part) for key, part in list(vars(value).items()) if isinstance(part, METHODS))
            yield from ((f"{module.__name__}.{name}.{key}", _seen(part)) for key, part in methods)


def _seen(value: object) -> tuple[object, object]:
    return value, getattr(value, "__code__", None)


def replaced(before: dict[str, tuple[object, object]]) -> str:
    """The first name that stands for something else than it did; empty where none does."""
    now = own_functions()
    for name, (value, code) in before.items():
        found = now.get(name, (None, None))
        if found[0] is not value or found[1] is not code:
            return name
    return ""
