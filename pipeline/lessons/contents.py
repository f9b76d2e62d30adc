"""The lessons by name, as lessons.yaml has them, known without torch, which the experiments import."""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pipeline.config.request_error import RequestError
from pipeline.errors import nearest

if TYPE_CHECKING:
    from pipeline.lessons.lesson import Lesson

CONTENTS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("lessons.yaml").read_text("utf-8"))


def chosen(only: str | None) -> list[str]:
    """Return the lessons named, in the order of the contents; all where `only` is None."""
    if only is None:
        return list(CONTENTS)
    names = [part.strip() for part in only.split(",") if part.strip()]
    if not names:
        raise RequestError(f"--only {only!r}: names no lesson; choose of: {', '.join(CONTENTS)}")
    for name in names:
        if name not in CONTENTS:
            raise RequestError(f"--only {name}: no such lesson; {nearest(name, CONTENTS)}")
    return [name for name in CONTENTS if name in names]


@cache
def lesson_of(name: str) -> "Lesson":
    """Return the lesson of that name: its words, and the functions of its module that are named after it."""
    from pipeline.lessons.lesson import Lesson

    words = CONTENTS[name]
    module, own = import_module(f"pipeline.lessons.experiments.{words['module']}"), name.replace("-", "_")
    found = {part: getattr(module, f"{part}_{own}", None) for part in ("run", "says")}
    functions = {part: function for part, function in found.items() if function}
    texts = {part: text for part, text in words.items() if part not in ("module", "claim")}
    return Lesson(name=name, **texts, **functions)
