"""Checks a value of the config against a type annotation, and says in one line what would have been right."""

import sys
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from msgspec import Meta

from pipeline.config.request_error import RequestError, nearest

NonNegativeFloat = Annotated[float, Meta(ge=0)]

LONGEST_SHOWN = 120  # characters of a value in a line
INTEGERS = 2**63  # from here on a record's JSON and torch's seeds take none

TYPES = {bool: "true or false", int: "an integer", float: "a number", str: "text", NoneType: "null"}


def checked(key: str, value: object, annotation: object) -> Any:
    """The value as the annotation wants it: a list becomes a tuple, and a number text, where only that is admitted.

    Args:
        key: what the user types, such as "data.batch_size".
        value: of plain Python, as Hydra's parser gives it.
        annotation: bool, int, float, str, None, Any, Literal, list, tuple[..., ...], dict, and unions of these.

    Raises:
        RequestError: the annotation doesn't admit the value; the line says what it admits.
    """
    kinds = alternatives(annotation)
    if any(admits(kind, value) for kind in kinds):
        if isinstance(value, list) and all(get_origin(kind) is tuple for kind in kinds if admits(kind, value)):
            return tuple(value)
        return value
    if str in kinds and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)  # a folder called 2026 is a number to Hydra's parser
    if all(literal_values(kind) for kind in kinds):
        choices = [shown(choice) for kind in kinds for choice in literal_values(kind)]
        raise RequestError(f"{key}={shown(value)}: {nearest(shown(value), choices)}")
    if type(value) is int and abs(value) >= INTEGERS:
        raise RequestError(f"{key}={shown(value)}: expected an integer below 2^63")
    raise RequestError(f"{key}={shown(value)}: expected {described(kinds)}")


def alternatives(annotation: object) -> list[object]:
    """The parts of a union, or the annotation itself; None as NoneType."""
    if get_origin(annotation) in (Union, UnionType):
        return [kind for part in get_args(annotation) for kind in alternatives(part)]
    return [NoneType if annotation is None else annotation]


def admits(kind: object, value: object) -> bool:
    """Whether a value is of one kind, which is no union; an integer is also a float, a bool is neither."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return admits(arguments[0], value) and all(within(bound, value) for bound in arguments[1:])
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in arguments)
    if (origin or kind) in (list, tuple, dict):
        return _admits_container(origin or kind, arguments, value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if kind is int:
        return type(value) is int and abs(value) < INTEGERS
    return kind is Any or type(value) is kind


def within(bounds: Meta, value: Any) -> bool:
    """Return whether a number keeps the bounds of an annotation."""
    return (bounds.ge is None or value >= bounds.ge) and (bounds.le is None or value <= bounds.le)


def bounds_text(bounds: Meta) -> str:
    """Return the bounds of an annotation as text, such as "≥ 1 and ≤ 10"."""
    return " and ".join(f"{sign} {bound}" for sign, bound in (("≥", bounds.ge), ("≤", bounds.le)) if bound is not None)


def _admits_container(kind: object, arguments: tuple[object, ...], value: object) -> bool:
    """A tuple[..., ...] stands for a list that isn't empty; of a dict, nothing within is checked."""
    if kind is dict:
        return isinstance(value, Mapping)
    if not isinstance(value, list) or (kind is not list and not value):
        return False
    return all(admits_one(arguments[0] if arguments else Any, part) for part in value)


def admits_one(annotation: object, value: object) -> bool:
    """Whether a value is of any kind that the annotation unites."""
    return any(admits(kind, value) for kind in alternatives(annotation))


def literal_values(kind: object) -> list[object]:
    """All values of a kind that has few; empty for one that has many."""
    if kind is NoneType:
        return [None]
    return list(get_args(kind)) if get_origin(kind) is Literal else []


def described(kinds: list[object]) -> str:
    """What is admitted, in words: "an integer ≥ 1, or null"."""
    words = [_described(kind) for kind in kinds if kind is not NoneType]
    return ", or ".join([" or ".join(words), *(["null"] if NoneType in kinds else [])])


def _described(kind: object) -> str:
    """One kind, in words."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return f"{_described(arguments[0])} {' and '.join(map(bounds_text, arguments[1:]))}"
    if origin is Literal:
        return " or ".join(map(shown, arguments))
    if kind is dict or origin is dict:
        return "key: value pairs"
    if kind is list or origin in (list, tuple):
        item = described(alternatives(arguments[0])) if arguments else ""
        some = "a list of one or more" if origin is tuple else "a list"
        return f"{some}, each {item}" if item else some
    return TYPES.get(kind, str(kind)) if isinstance(kind, type) else str(kind)


def shown(value: object) -> str:
    """A value as the user types it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = str(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}… ({len(text)} characters)"
