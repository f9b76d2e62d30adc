"""Dataclasses to JSON and back, with every type checked; a run's record to results.json and back."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from pipeline.records.atomic_json import write_json
from pipeline.records.masking import masked, referred_to, values_to_hide
from pipeline.records.migrations import STEPS, migrated
from pipeline.records.run_record import SCHEMA_VERSION, RunRecord

FILE = "results.json"
Kind = TypeVar("Kind")


class RecordError(Exception):
    """A file that can't be read as a record; the text is one line."""


def from_json(kind: type[Kind], value: object) -> Kind:
    """The dataclass `kind` from plain JSON values.

    Raises:
        ValueError: a field is missing, is unknown to `kind`, or has a value of another type; the text holds its path.
    """
    record = msgspec.convert(value, kind)
    if unknown := next(_unknown_fields(value, msgspec.to_builtins(record), "$"), None):
        raise ValueError(f"no field of {kind.__name__} - at `{unknown}`")
    return record


def _unknown_fields(value: object, known: object, path: str) -> Iterator[str]:
    """Paths of what `value` holds and `known` doesn't, which msgspec passes over in silence."""
    if isinstance(value, dict) and isinstance(known, dict):
        for key, part in value.items():
            if key not in known:
                yield f"{path}.{key}"
            else:
                yield from _unknown_fields(part, known[key], f"{path}.{key}")
    elif isinstance(value, list) and isinstance(known, list):
        for index, (part, other) in enumerate(zip(value, known, strict=True)):
            yield from _unknown_fields(part, other, f"{path}[{index}]")


def fields_from_json(kind: type[object], fields: Mapping[str, object]) -> dict[str, Any]:
    """Some fields of the dataclass `kind` from plain JSON values.

    Raises:
        ValueError: `kind` has no such field, or a value has another type.
    """
    hints = get_type_hints(kind)
    if unknown := sorted(set(fields) - set(hints)):
        raise ValueError(f"{kind.__name__} has no field {unknown[0]!r}")
    return {name: msgspec.convert(value, hints[name]) for name, value in fields.items()}


def to_json(record: object) -> Any:
    """Dataclasses, and lists of them, as plain JSON values; NaN and infinities stay floats."""
    return msgspec.to_builtins(record)


def save(run: RunRecord, folder: Path) -> Path:
    """Write results.json, without values of the environment that are secret or that its config refers to; its path."""
    path = folder / FILE
    write_json(_masked_json(run), path)
    return path


def without_secrets(run: RunRecord) -> RunRecord:
    """The record as `save` writes it."""
    return from_json(RunRecord, _masked_json(run))


def _masked_json(run: RunRecord) -> Any:
    return masked(to_json(run), values_to_hide(referred_to(run.config)))


def load(folder: Path) -> RunRecord:
    """The record in `folder`, or in the .json file that is named.

    Raises:
        RecordError: there is none, its schema version is unknown, or a value isn't what the schema allows.
    """
    path = folder if folder.suffix == ".json" else folder / FILE
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if value.get("schema_version") not in (*STEPS, SCHEMA_VERSION):
            raise RecordError(
                f"{path}: schema version {value.get('schema_version')}, this program reads {SCHEMA_VERSION}"
            )
        return from_json(RunRecord, migrated(value))
    except FileNotFoundError:
        raise RecordError(f"{path}: no such file; name the folder of a run, such as outputs/DATE/TIME") from None
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise RecordError(f"{path}: not a run's record ({error})") from None
