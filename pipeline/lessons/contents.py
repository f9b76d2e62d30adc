"""The lessons, in the order in which they are read: memory, arithmetic, access, then overhead and fusion.

Their names are known without torch, which the experiments import.
"""

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from pipeline.config.request_error import RequestError
from pipeline.errors import nearest

if TYPE_CHECKING:
    from pipeline.lessons.lesson import Lesson

EXPERIMENTS = {  # what `--only` takes, and the file in experiments/
    "context": "memory",
    "transfers": "memory",
    "precisions": "arithmetic",
    "eight-bits": "arithmetic",
    "sparsity": "arithmetic",
    "sizes": "arithmetic",
    "batches": "arithmetic",
    "in-place": "memory",
    "strides": "memory",
    "contiguous": "memory",
    "chain": "fusion",
    "gelu": "fusion",
    "launches": "overhead",
    "many-tensors": "fusion",
    "optimizers": "overhead",
    "start-up": "overhead",
}


def chosen(only: str | None, known: Collection[str] = tuple(EXPERIMENTS)) -> list[str]:
    """Return the lessons named, in the order of the contents; all where `only` is None.

    Raises:
        RequestError: it names none, or there is no lesson of that name.
    """
    if only is None:
        return list(known)
    names = [part.strip() for part in only.split(",") if part.strip()]
    if not names:
        raise RequestError(f"--only {only!r}: names no lesson; choose of: {', '.join(known)}")
    for name in names:
        if name not in known:
            raise RequestError(f"--only {name}: no such lesson; {nearest(name, known)}")
    return [name for name in known if name in names]


@cache
def lesson_of(name: str) -> "Lesson":
    """Return the lesson of that name."""
    module = import_module(f"pipeline.lessons.experiments.{EXPERIMENTS[name]}")
    lesson: Lesson = getattr(module, f"{name.replace('-', '_').upper()}_LESSON")
    return replace(lesson, name=name)
