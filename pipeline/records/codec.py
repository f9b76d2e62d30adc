"""Dataclasses to JSON and back, with checked types; the record of a run as results.json."""

import json
import math
import re
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from pipeline.errors import OneLineError, first_line, shortened
from pipeline.records.disk import write_json
from pipeline.records.masking import masked, values_to_hide
from pipeline.records.run_record import SCHEMA_VERSION, RunRecord

FILE = "results.json"
REFUSAL = "refused.txt"  # in a sweep job's folder: why the request was refused
CLAIM = "claimed"  # in every run's folder from the start
STAGE_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
MOST_BYTES = 2**30  # of a record; the longest seen has 5 MB
CHANGEABLE = (NoneType, dict, list)  # types that are or may hold a null
Kind = TypeVar("Kind")


class RecordError(OneLineError):
    """A file that can't be read as a record; the text is one line."""


def from_json(kind: type[Kind], value: object) -> Kind:
    """Convert plain JSON values to the dataclass `kind`; null becomes NaN where a float is required."""
    return msgspec.convert(_checked(kind, value, f"{kind.__name__} - at `$"), kind)


def _checked(annotation: object, value: object, place: str) -> object:
    """Return the value with NaN instead of null where the annotation is float; raise ValueError of unknown fields.

    msgspec ignores those of dataclasses. `place` is the outermost type and the path of the value within it.
    """
    if value is None:
        return math.nan if annotation is float else None
    origin, arguments = _form(annotation)
    if origin in (Union, UnionType):
        kinds = [part for part in arguments if part is not NoneType]
        return _checked(kinds[0], value, place) if len(kinds) == 1 else value
    if isinstance(value, dict):
        known = _hints(annotation)
        if unknown := [key for key in value if known and key not in known]:
            raise ValueError(f"no field of {place}.{unknown[0]}`")
        each = arguments[1] if origin is dict else None
        return {
            key: _checked(known.get(key, each), part, f"{place}.{key}") if isinstance(part, CHANGEABLE) else part
            for key, part in value.items()
        }
    each = arguments[0] if origin in (list, tuple) else None
    if each is None or not isinstance(value, list):
        return value
    return [
        _checked(each, part, f"{place}[{index}]") if isinstance(part, CHANGEABLE) else part
        for index, part in enumerate(value)
    ]


@cache
def _form(annotation: Hashable) -> tuple[object, tuple[object, ...]]:
    """Return the origin of a generic annotation, and its arguments."""
    return get_origin(annotation), get_args(annotation)


@cache
def _hints(kind: Hashable) -> dict[str, object]:
    """Return the annotations of a dataclass; nothing for other types."""
    return get_type_hints(kind) if is_dataclass(kind) else {}


def fields_from_json(kind: type[object], fields: Mapping[str, object]) -> dict[str, Any]:
    """Convert plain JSON values to fields of the dataclass `kind`."""
    hints = get_type_hints(kind, include_extras=True)
    if unknown := sorted(set(fields) - set(hints)):
        raise ValueError(f"{kind.__name__} has no field {unknown[0]!r}")
    return {name: msgspec.convert(value, hints[name]) for name, value in fields.items()}


def to_json(record: object) -> Any:
    """Convert dataclasses to plain JSON values; NaN and infinities stay floats until they are written."""
    return msgspec.to_builtins(record)


def save(run: RunRecord, folder: Path) -> Path:
    """Write results.json without secrets, and return its path; a missing folder is created."""
    path = folder / FILE
    folder.mkdir(parents=True, exist_ok=True)
    write_json(_masked_json(run), path)
    return path


def without_secrets(run: RunRecord) -> RunRecord:
    """Return the record as `save` writes it."""
    return from_json(RunRecord, _masked_json(run))


def _masked_json(run: RunRecord) -> object:
    return masked(to_json(run), values_to_hide(run.config.variables))


def load(folder: Path, named: str = "a run") -> RunRecord:
    """Read the record in a folder, or in a .json file; `named` says whose folder may be named."""
    path = folder if folder.suffix == ".json" else folder / FILE
    with reading(path, "a run's record", f"name the folder of {named}, such as outputs/DATE/TIME"):
        run = from_json(RunRecord, document(path))
        names = [stage.name for stage in run.stages]
        for name in names:  # which are also those of folders
            if not STAGE_NAME.fullmatch(name) or names.count(name) > 1:
                raise ValueError(f"{shortened(repr(name))} can't be a stage's name, or is that of two")
    return run


def document(path: Path) -> dict[str, object]:
    """Return the values of a file of this program's schema; raise RecordError of a pipe, which might never end."""
    if path.exists() and not path.is_file():
        raise RecordError(f"{path}: not a regular file")
    if path.is_file() and path.stat().st_size > MOST_BYTES:
        raise RecordError(f"{path}: {path.stat().st_size / 2**30:.3g} GiB is more than any record has")
    value: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    version = value.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        found = shortened(repr(version))
        raise RecordError(f"{path}: schema version {found}, this program reads {SCHEMA_VERSION}; measure again")
    return value


@contextmanager
def reading(path: Path, kind: str, way: str = "name the folder of a run, such as outputs/DATE/TIME") -> Iterator[None]:
    """Turn errors about a file of a `kind` into a RecordError; `way` says what to do where there is none."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        if (path.parent / REFUSAL).is_file():
            way = f"the request was refused: {refusal_in(path.parent)}"
        elif (path.parent / CLAIM).is_file():
            way = "this run has no record yet, or ended before its first one; nothing can be taken over: run it anew"
        raise RecordError(f"{path}: no such file; {way}") from None
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or first_line(error)}") from None
    except RecursionError:
        raise RecordError(f"{path}: not {kind} (nested too deeply)") from None
    except (TypeError, AttributeError, KeyError, ValueError, IndexError) as error:
        raise RecordError(f"{path}: not {kind} ({first_line(error)})") from None


def refusal_in(folder: Path) -> str:
    """Return why the request of a sweep's job was refused, in one line; empty if it was not."""
    path = folder / REFUSAL
    return shortened(path.read_text(encoding="utf-8").strip()) if path.is_file() else ""
