"""Writes a run's record to results.json and reads it again."""

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from pipeline.records.migrations import STEPS, migrated
from pipeline.records.run_record import SCHEMA_VERSION, RunRecord


class RecordError(Exception):
    """A results.json that can't be read; the text is one line."""


Revived = TypeVar("Revived")


def revive(kind: type[Revived], value: Any) -> Revived:
    """The dataclass `kind` out of what JSON gave.

    Raises:
        TypeError: a field is missing, or one is there that `kind` doesn't know.
    """
    hints = typing.get_type_hints(kind)
    return kind(**{name: _revive_field(hints[name], part) if name in hints else part for name, part in value.items()})


def _revive_field(hint: Any, value: Any) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if value is None:
        return None
    if origin in (types.UnionType, typing.Union):
        return _revive_field(next(part for part in inner if part is not types.NoneType), value)
    if origin is list:
        return [_revive_field(inner[0], part) for part in value]
    if origin is tuple:
        return tuple(_revive_field(inner[0], part) for part in value)
    if dataclasses.is_dataclass(hint):
        return revive(typing.cast(type[Any], hint), value)
    return value


def revive_field(kind: type[Any], name: str, value: Any) -> Any:
    """One field of the dataclass `kind` out of what JSON gave."""
    return _revive_field(typing.get_type_hints(kind)[name], value)


def to_json(record: Any) -> dict[str, Any]:
    """The record as plain JSON values; NaN and infinities as Python's json writes them."""
    return dataclasses.asdict(record)


def save(run: RunRecord, folder: Path) -> Path:
    """Write results.json, whole or not at all: an interrupted write leaves the last good one."""
    path = folder / "results.json"
    scratch = path.with_suffix(".json.part")
    scratch.write_text(json.dumps(to_json(run), indent=1), encoding="utf-8")
    scratch.replace(path)
    return path


def load(folder: Path) -> RunRecord:
    """The record in `folder`.

    Raises:
        RecordError: there is none, or it was written by another version of the schema.
    """
    path = folder if folder.suffix == ".json" else folder / "results.json"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value.get("schema_version") not in (*STEPS, SCHEMA_VERSION):
            raise RecordError(
                f"{path}: schema version {value.get('schema_version')}, this program reads {SCHEMA_VERSION}"
            )
        return revive(RunRecord, migrated(value))
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file; name the folder of a run, such as outputs/DATE/TIME") from None
    except (json.JSONDecodeError, UnicodeDecodeError, TypeError, AttributeError, KeyError, ValueError) as error:
        raise RecordError(f"{path}: not a run's record ({error})") from None
