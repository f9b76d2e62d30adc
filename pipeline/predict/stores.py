"""Masks and images in places that fsspec reaches, such as s3://bucket/images, and their copies in a scratch folder.

The plain engine works on the copies. A mask goes to its place after its sidecar, by one put that fails if the name has
been taken meanwhile. So a mask is there once and whole, whoever is killed.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import msgspec
import pyarrow as pa
from pyarrow import parquet

from pipeline.config.request_error import RequestError
from pipeline.errors import first_line
from pipeline.inputs.formats import TIFF, suffix_in
from pipeline.predict.cases import Case
from pipeline.predict.mask_files import SIDECARS, Form, Sidecar, Statements, overlay_of
from pipeline.records.disk import write_bytes

CHANGED = ("mtime", "LastModified", "last_modified", "updated", "created")  # keys of fsspec's file systems, by turns


class Store:
    """A folder that fsspec reaches."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        try:
            self.fs, self.root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise RequestError(f"{url}: {first_line(error)}") from error

    def path(self, name: str) -> str:
        """Return the file system's name of a file."""
        return f"{self.root.rstrip('/')}/{name}"

    def names(self, within: str = "") -> Iterator[list[str]]:
        """Yield the names of the files of each folder in order, hidden ones left out; one folder is held at a time."""
        entries = sorted(self.fs.ls(self.path(within), detail=True), key=lambda entry: str(entry["name"]))
        self.fs.invalidate_cache()
        seen = [(within + entry["name"].rstrip("/").rpartition("/")[2], entry["type"]) for entry in entries]
        seen = [(name, kind) for name, kind in seen if not name.rpartition("/")[2].startswith(".")]
        yield [name for name, kind in seen if kind == "file"]
        for name, kind in seen:
            if kind == "directory":
                yield from self.names(f"{name}/")

    def lines(self, name: str) -> Iterator[str]:
        """Yield the lines of a text file that aren't empty."""
        with self.fs.open(self.path(name), "rt") as file:
            yield from filter(None, map(str.strip, file))

    def get(self, name: str) -> bytes | None:
        """Return the content of a file; None where there is none."""
        try:
            content: bytes = self.fs.cat_file(self.path(name))
        except FileNotFoundError:
            return None
        return content

    def put(self, name: str, content: bytes, *, new: bool) -> bool:
        """Write a file at once; return False if it is to be new and is there already."""
        write = partial(self.fs.pipe_file, self.path(name), content, mode="create" if new else "overwrite")
        try:
            try:
                write()
            except FileNotFoundError:  # of a file system with folders
                self.fs.makedirs(self.path(name).rpartition("/")[0], exist_ok=True)
                write()
        except FileExistsError:
            return False
        except Exception as error:  # each file system has errors of its own
            raise RequestError(f"{self.url}/{name}: it can't be written: {first_line(error)}") from error
        return True

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with suppress(FileNotFoundError):
            self.fs.rm_file(self.path(name))

    def stand_in(self, name: str, copy: Path) -> int:
        """Make an empty file of the size and the time of change of a file; return that time in ns."""
        told = self.fs.info(self.path(name))
        copy.parent.mkdir(parents=True, exist_ok=True)
        with copy.open("wb") as file:
            file.truncate(told["size"])
        os.utime(copy, ns=(changed := changed_ns(told), changed))
        return changed

    def copy(self, name: str, copy: Path, changed: int) -> None:
        """Copy a file to a path, with its time of change in ns."""
        self.fs.get_file(self.path(name), str(copy))
        os.utime(copy, ns=(changed, changed))


def sidecar_of(mask: str) -> str:
    """Return the name of a mask's sidecar in a store."""
    folder, _, name = mask.rpartition("/")
    return f"{folder and folder + '/'}{SIDECARS}/{name}.json"


def changed_ns(told: dict[str, Any]) -> int:
    """Return the time of change in ns that a file system tells of a file; 0 where it tells none."""
    when = next((told[key] for key in CHANGED if told.get(key) is not None), 0)
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    return int((when.timestamp() if isinstance(when, datetime) else float(when)) * 1e6) * 1000


class Masks:
    """The masks of some cases, which the plain engine writes in their place; other places copy them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.statements = Statements(folder)

    def fetch(self, mask: str) -> tuple[Sidecar, ...]:
        """Copy a mask into the folder, if it is there; return its sidecars."""
        return self.statements.check(mask)

    def keep(self, made: Sequence[str], failed: Sequence[str]) -> None:
        """Bring masks from the folder to their place, and remove those of cases that have none."""


class StoredMasks(Masks):
    """Masks in a store, in the layout of a local folder."""

    def __init__(self, store: Store, folder: Path) -> None:
        super().__init__(folder)
        self.store = store
        self.there: set[str] = set()

    def fetch(self, mask: str) -> tuple[Sidecar, ...]:
        """Copy a mask into the folder, if it is there; return its sidecar."""
        if (content := self.store.get(mask)) is None:
            return ()
        if (sidecar := self.store.get(sidecar_of(mask))) is None:
            raise RequestError(f"{self.store.url}/{mask}: it is there and no mask of pipeline.predict")
        self.there.add(mask)
        place(content, self.folder / mask)
        with suppress(msgspec.MsgspecError):
            return (msgspec.json.decode(sidecar, type=Sidecar),)
        return ()

    def keep(self, made: Sequence[str], failed: Sequence[str]) -> None:
        """Put the sidecars first; a mask that another process has made meanwhile is the same and stays."""
        self.statements.read()
        for mask in made:
            if (self.folder / (shown := overlay_of(mask))).exists():
                self.store.put(shown, (self.folder / shown).read_bytes(), new=False)
            self.store.put(sidecar_of(mask), msgspec.json.encode(self.statements.about(mask)[-1]), new=False)
            self.store.put(mask, (self.folder / mask).read_bytes(), new=mask not in self.there)
        for mask in self.there.intersection(failed):
            self.store.remove(mask)
            self.store.remove(sidecar_of(mask))


class PartMasks(Masks):
    """Masks in one Parquet file with columns name, mask and sidecar, named after the first of its cases."""

    def __init__(self, out: Path | str, first: str, folder: Path) -> None:
        super().__init__(folder)
        self.store = Store(str(out))
        self.local = out if isinstance(out, Path) else None
        self.name = f"part-{hashlib.sha256(os.fsencode(first)).hexdigest()[:24]}.parquet"
        self.content = self.store.get(self.name)
        self.rows: dict[str, dict[str, Any]] = {}
        with suppress(pa.ArrowInvalid):  # no part
            rows = parquet.read_table(pa.BufferReader(self.content)).to_pylist() if self.content else []
            self.rows = {row["name"]: row for row in rows}

    def fetch(self, mask: str) -> tuple[Sidecar, ...]:
        """Copy a mask into the folder, if the part has it; return its sidecar."""
        if not (row := self.rows.get(mask)):
            return ()
        place(row["mask"], self.folder / mask)
        return (msgspec.json.decode(row["sidecar"], type=Sidecar),)

    def keep(self, made: Sequence[str], failed: Sequence[str]) -> None:  # noqa: ARG002 - the folder shows them
        """Write the part again if a mask of it is new or gone."""
        names = [path.relative_to(self.folder) for path in sorted(self.folder.rglob("*")) if path.is_file()]
        names = [name.as_posix() for name in names if not any(part.startswith(".") for part in name.parts)]
        if not made and names == sorted(self.rows):
            return
        self.statements.read()
        new = [self.statements.about(name)[-1:] for name in names]
        sidecars = [
            msgspec.json.encode(*found) if found else self.rows[name]["sidecar"]
            for found, name in zip(new, names, strict=True)
        ]
        masks = [(self.folder / name).read_bytes() for name in names]
        out = pa.BufferOutputStream()
        parquet.write_table(pa.table({"name": names, "mask": masks, "sidecar": sidecars}), out)
        content = bytes(out.getvalue())
        if self.local:
            write_bytes(content, self.local / self.name)
        else:
            self.store.put(self.name, content, new=self.content is None)


def place(content: bytes, path: Path) -> None:
    """Write a file, and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def copied(case: Case, images: Store, masks: Masks, made_by: str, form: Form, *, scratch: Path) -> Case:
    """Return a case whose files are copies in the scratch folder; of one whose mask is there, without their content."""
    files = tuple(scratch / file for file in case.files)
    changed = [images.stand_in(file.as_posix(), copy) for file, copy in zip(case.files, files, strict=True)]
    if not suffix_in(TIFF, files[0]):  # whose mask is named by its content
        case = replace(case, sidecars=masks.fetch(case.mask))
        if replace(case, files=files).is_made(masks.folder, made_by):
            return replace(case, files=files)
    for file, copy, when in zip(case.files, files, changed, strict=True):
        images.copy(file.as_posix(), copy, when)
    case = replace(case, files=files, suffix=form.suffix(files[0], case.is_volume))
    return replace(case, sidecars=masks.fetch(case.mask)) if suffix_in(TIFF, files[0]) else case
