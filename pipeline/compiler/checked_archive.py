"""The archive of an exported program, checked before torch reads it, and written anew from what was checked.

`torch.export.load` unpickles, loads shared libraries, evaluates expressions and guards, writes names into code that it
then runs, and calls whatever operation a graph names, `aten.from_file` among them. So nothing of an archive reaches it
but raw weights and a graph in which every part is of a known kind.
"""

import io
import json
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from pipeline.compiler.allowed_operations import is_allowed
from pipeline.compiler.errors import shortened

MOST_MEMBERS = 100_000
MOST_BYTES_OF_GRAPH = 64 * 2**20
MOST_DEPTH = 40  # of the values in a document
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLAIN = re.compile(r"[A-Za-z0-9_.+-]*")  # a name with dots, a version, a device
RAW = re.compile(r"data/(weights/weight|constants/tensor)_\d+")
GRAPH, INPUTS = "models/model.json", "data/sample_inputs/model.pt"
CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
MARKS = {"archive_format": b"pt2", "archive_version": b"0", "byteorder": b"little", ".data/version": None}
IGNORED = {INPUTS, ".data/serialization_id"}  # written by torch, and not needed
# Of the kinds of value that torch writes: those that are neither code, a graph, an object nor an expression.
VALUES = frozenset(
    {
        *("as_none", "as_bool", "as_bools", "as_int", "as_ints", "as_int_lists", "as_float", "as_floats"),
        *("as_float_lists", "as_string", "as_strings", "as_scalar_type", "as_memory_format", "as_layout", "as_device"),
        *("as_tensor", "as_tensors", "as_optional_tensor", "as_optional_tensors"),
    }
)
RANGES = "range_constraints"  # of the lengths of axes that torch.export left open
EMPTY = (
    "sym_int_values",
    "sym_bool_values",
    "sym_float_values",
    "custom_obj_values",
    RANGES,
    "guards_code",
)
NAMED = {"tensor_values", "config"}  # mappings by the names of tensors
FREE = {
    "as_string",
    "as_strings",
    "in_spec",
    "out_spec",
    "target",
}  # texts that are checked elsewhere, or passed on as text
CONTAINERS = {None, "builtins.tuple", "builtins.list", "builtins.dict"}


class ArchiveError(ValueError):
    """An archive that isn't an exported program as this version writes it; one line."""


def checked_archive(content: bytes) -> io.BytesIO:
    """The archive again, of nothing but what was checked.

    Raises:
        ArchiveError: it is torn, is no archive, inflates, or holds what no rewritten net does.
    """
    members = _members(content)
    rewritten = io.BytesIO()
    with zipfile.ZipFile(rewritten, "w") as archive:
        for name, data in members.items():
            if name == GRAPH:
                data = json.dumps(_checked_graph(_parsed(name, data))).encode()  # noqa: PLW2901 - the same, checked
            elif name in CONFIGS:
                data = json.dumps(_checked_config(_parsed(name, data))).encode()  # noqa: PLW2901
            elif name == INPUTS:
                data = b""  # noqa: PLW2901 - a pickle, which nobody reads
            archive.writestr(f"net/{name}", data)
    rewritten.seek(0)
    return rewritten


def _members(content: bytes) -> dict[str, bytes]:
    """The members by their names below the archive's one folder."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return _read(archive, len(content))
    except ArchiveError:
        raise
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise ArchiveError(f"no whole archive ({shortened(' '.join(str(error).split()))})") from None


def _read(archive: zipfile.ZipFile, size: int) -> dict[str, bytes]:
    entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise ArchiveError("a member is compressed; torch writes them as they are")
    if len(entries) > MOST_MEMBERS or sum(entry.file_size for entry in entries) > size:
        raise ArchiveError(f"{len(entries)} members that come to more than the file's {size} bytes, or too many")
    found: dict[str, bytes] = {}
    for entry in entries:
        name = entry.filename.partition("/")[2]
        marked = name in MARKS or name in CONFIGS or name in IGNORED or name == GRAPH
        if not (marked or RAW.fullmatch(name)) or name in found:
            raise ArchiveError(f"a member {entry.filename!r:.80}, which no rewritten net has, or has twice")
        found[name] = archive.read(entry)
    if missing := [name for name in (GRAPH, *CONFIGS, *MARKS) if name not in found]:
        raise ArchiveError(f"no member {missing[0]}")
    if wrong := [name for name, mark in MARKS.items() if mark and found[name].strip() != mark]:
        raise ArchiveError(f"{wrong[0]} is {found[wrong[0]][:20]!r}, torch writes {MARKS[wrong[0]]!r}")
    return found


def _parsed(name: str, data: bytes) -> dict[str, Any]:
    if len(data) > MOST_BYTES_OF_GRAPH:
        raise ArchiveError(f"{name} has {len(data)} bytes, of at most {MOST_BYTES_OF_GRAPH}")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{name} is no JSON ({error})") from None
    if not isinstance(document, dict):
        raise ArchiveError(f"{name} is no mapping")
    return document


def _checked_graph(document: dict[str, Any]) -> dict[str, Any]:
    """The document with operations, names and values that are all known; torch's notes on its origin are left out."""
    try:
        module = document["graph_module"]
        nodes, calls = module["graph"]["nodes"], module["module_call_graph"]
        for node in nodes:
            node["metadata"] = {}
            if not is_allowed(node["target"]):
                raise ArchiveError(f"operation {node['target']!r:.80}: not among those that a rewritten net is made of")
        for signature in [call["signature"] for call in calls if call["signature"] is not None]:
            for key in ("in_spec", "out_spec"):
                signature[key] = _checked_tree(signature[key])
        module["metadata"] = {}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise (
            error if isinstance(error, ArchiveError) else ArchiveError(f"{GRAPH} is no graph ({error!r:.80})")
        ) from None
    _check(document)
    return document


def _checked_tree(text: str) -> str:
    """How a call's inputs or answers nest: in tuples, lists and mappings alone, since torch imports what it names."""
    protocol, tree = json.loads(text)
    for key, value in _pairs(tree):
        names = (json.loads(value) or []) if key == "context" and value is not None else []
        if (key == "type" and value not in CONTAINERS) or any(not isinstance(name, str) for name in names):
            raise ArchiveError(f"a call's inputs or answer are in {value!r:.80}")
    return json.dumps([protocol, tree])


def _checked_config(document: dict[str, Any]) -> dict[str, Any]:
    """Where the weights lie: in raw bytes, no pickle among them."""
    entries = document.get("config")
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise ArchiveError("the list of its weights is none")
    for name, entry in entries.items():
        if entry.get("use_pickle") is not False or "path_name" not in entry:
            raise ArchiveError(f"{name!r:.80} is pickled, which could run code")
    _check(document)
    return document


def _check(document: object) -> None:
    """Every kind of value is known, and no text but an operation's argument could be more than a name."""
    for key, value in _pairs(document):
        if key.startswith("as_") and key not in VALUES:
            raise ArchiveError(f"a value of the kind {key!r:.80}, which no rewritten net has")
        if key in EMPTY and value:
            dynamic = "; its shapes are dynamic: export it without dynamic_shapes" if key == RANGES else ""
            raise ArchiveError(f"{key} isn't empty: {value!r:.80}{dynamic}")
        if key == "name" and value is not None and not (isinstance(value, str) and NAME.fullmatch(value)):
            raise ArchiveError(f"{value!r:.80} is no name")
        texts = [] if key in FREE else [key, value, *_items(value), *(value if _named(key, value) else ())]
        if wrong := [part for part in texts if isinstance(part, str) and not PLAIN.fullmatch(part)]:
            raise ArchiveError(f"{wrong[0]!r:.80} is no name")


def _pairs(document: object) -> Iterator[tuple[str, Any]]:
    """Every key of a document with its value, however deep it lies; the names of a mapping by name are no keys."""
    level: list[object] = [document]
    for _ in range(MOST_DEPTH):
        below: list[object] = []
        for part in level:
            if isinstance(part, dict):
                yield from part.items()
                below += [list(value.values()) if _named(key, value) else value for key, value in part.items()]
            else:
                below += _items(part)
        if not below:
            return
        level = below
    raise ArchiveError(f"values nested more than {MOST_DEPTH} deep")


def _named(key: str, value: object) -> bool:
    """Whether what a document has under a key is a mapping whose keys are names of tensors."""
    return key in NAMED and isinstance(value, dict)


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []
