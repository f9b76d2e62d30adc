"""A group of the config as a dataclass, every key and value checked."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TypeVar, get_type_hints

from pipeline.config.checks import checked, shown
from pipeline.config.request_error import RequestError, nearest

Spec = TypeVar("Spec")


def mapping(key: str, value: object, remedy: str = "") -> Mapping[str, object]:
    """The value, which must be key: value pairs.

    Raises:
        RequestError: it is something else; the line ends with the remedy.
    """
    if isinstance(value, Mapping):
        return value
    raise RequestError(f"{key}={shown(value)}: expected key: value pairs{remedy and f'; {remedy}'}")


def read_group(spec: type[Spec], group: str, value: Mapping[str, object]) -> Spec:
    """A dataclass from a group of the config, each value checked against its field's annotation.

    Raises:
        RequestError: an unknown key, a missing one, or a value that isn't admitted.
    """
    types = get_type_hints(spec, include_extras=True)
    for key in value:
        if key not in types:
            raise RequestError(f"{group}.{key}: no such key; {nearest(key, sorted(types))}")
    required = [part.name for part in fields(spec) if part.default is MISSING]  # type: ignore[arg-type]
    if missing := [key for key in required if key not in value]:
        raise RequestError(f"{group}.{missing[0]}: not set; {group} takes {', '.join(required)}")
    return spec(**{key: checked(f"{group}.{key}", part, types[key]) for key, part in value.items()})
