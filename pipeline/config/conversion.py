"""Plain values to typed ones by msgspec; its errors become `KEY=VALUE: problem; the nearest valid choice`."""

import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from pipeline.config.request_error import RequestError, shown
from pipeline.errors import nearest

T = TypeVar("T")
PATH = re.compile(r"(.*?)(?: - at (?:`key` in )?`\$(.*)`)?", re.DOTALL)
NUMBER = re.compile(r"-?\d+(\.\d*)?|true|false", re.ASCII | re.IGNORECASE)
MISSING = re.compile(r"Object missing required field `(\w+)`")


def converted(value: object, kind: type[T], key: str = "") -> T:
    """Return `value` as `kind`: a struct, a dataclass or any type that msgspec converts."""
    _check_keys(value, kind, key)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise RequestError(_line(str(error), value, kind, key)) from None


def fields_of(kind: object) -> dict[str, Any]:
    """Return the annotations of a struct or dataclass, and of no other type any."""
    if isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, msgspec.Struct)):
        return get_type_hints(kind, include_extras=True)
    return {}


def _check_keys(value: object, kind: object, key: str) -> None:
    """Raise RequestError for the first key that has no field; msgspec ignores those of dataclasses."""
    fields = fields_of(kind)
    if not fields or not isinstance(value, Mapping):
        return
    for name, part in value.items():
        place = f"{key}.{name}" if key else str(name)
        if name not in fields:
            raise RequestError(f"{place}: no such key; {nearest(name, fields)}")
        _check_keys(part, fields[name], place)


def _line(text: str, value: object, kind: object, key: str) -> str:
    """Return msgspec's message with the key, the value and the nearest choice in front of and behind it."""
    problem, path = PATH.fullmatch(text).groups("")  # type: ignore[union-attr]
    steps: list[str] = re.findall(r"[^.\[\]`]+", path)
    for step in steps:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isdigit():
            value = value[int(step)]
        kind = fields_of(kind).get(step, kind)
    place = ".".join([*filter(None, [key]), *steps])
    if missing := MISSING.match(problem):
        return f"{place and f'{place}.'}{missing[1]}: not set"
    problem = problem[:1].lower() + problem[1:].replace("`", "")
    choices = literals(kind)
    if choices and value not in choices and not isinstance(value, list):
        problem = nearest(shown(value), [shown(choice) for choice in choices])
    if isinstance(value, str) and NUMBER.fullmatch(value) and problem.endswith("got str"):
        problem += f"; it is a text, as in quotes or by oc.env; {place}=$NAME lets the shell put a variable's value in"
    return f"{place}: {problem}" if isinstance(value, Mapping) else f"{place}={shown(value)}: {problem}"


def literals(kind: object) -> list[object]:
    """Return the values of a type that has no others, such as Literal["a", "b"] | None; else an empty list."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return list(arguments)
    if origin in (list, tuple, Annotated):
        return literals(arguments[0])
    if origin in (Union, UnionType):
        found = [literals(part) for part in arguments if part is not NoneType]
        return [value for values in found for value in values] if all(found) else []
    return []
