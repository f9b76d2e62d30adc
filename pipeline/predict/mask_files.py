"""Masks as files, each with a sidecar that states what made it and of what.

The sidecar of `NAME.png` is `.masks/NAME.png.json` in the same folder, where no listing of the masks meets it.
It is on disk before the mask takes its name, and it holds the digest of the mask: after a crash between the two,
the mask that is there doesn't match and is made again.
"""

import hashlib
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from PIL import Image

from pipeline.config.request_error import RequestError
from pipeline.inputs.formats import VOLUMES, format_in, reading, suffix_in, write_array
from pipeline.records.content_digest import file_digest
from pipeline.records.disk import sync_files, sync_folder

SIDECARS = ".masks"
SCHEMA = 1
PNG_LEVEL = 1  # a quarter of level 6's time, for masks half as large again
PNG = ".png"  # of an image's mask; a volume's has the volume's own format
NPY = ".npy"  # of a volume's mask whose format can't be written


class InputFile(msgspec.Struct, frozen=True):
    """A file that a mask was made of.

    Attributes:
        name: without its folder.
        bytes: its size; of a folder, of all its files.
        changed_ns: time of its last change; of a folder, the sum over its files.
        sha256: of its content.
    """

    name: str
    bytes: int
    changed_ns: int
    sha256: str


class Sidecar(msgspec.Struct, frozen=True):
    """The statement beside a mask.

    Attributes:
        stage: the method that made it.
        made_by: digest of all that its answers depend on, which predict.json spells out: run or bundle, stage, windows.
        inputs: the files of the image or volume.
        mask_sha256: of the mask's content.
        schema: of this file.
    """

    stage: str
    made_by: str
    inputs: list[InputFile]
    mask_sha256: str
    schema: int = SCHEMA


def mask_suffix(volume: Path) -> str:
    """Return the suffix of a volume's mask: its own, or .npy where its format isn't written."""
    return suffix_in(VOLUMES, volume) if format_in(VOLUMES, volume).write else NPY


def described(path: Path) -> InputFile:
    """Return the description of a file, or of a folder's files.

    Raises:
        OSError: it is gone.
    """
    name, size, changed = seen(path)
    if not path.is_dir():
        return InputFile(name, size, changed, file_digest(path))
    content = hashlib.sha256()
    for file in files_of(path):
        content.update(f"{file.relative_to(path)} {file_digest(file)}\n".encode())
    return InputFile(name, size, changed, content.hexdigest())


def seen(path: Path) -> tuple[str, int, int]:
    """Return name, size and time of change of a file or a folder."""
    states = [file.stat() for file in files_of(path)]
    return path.name, sum(state.st_size for state in states), sum(state.st_mtime_ns for state in states)


def files_of(path: Path) -> list[Path]:
    """Return the file itself, or all files of a folder in order."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def sidecar_of(mask: Path) -> Path:
    """Return the path of a mask's sidecar."""
    return mask.parent / SIDECARS / f"{mask.name}.json"


def write(labels: np.ndarray, mask: Path, source: Path, stage: str, made_by: str, inputs: Sequence[InputFile]) -> None:
    """Write a mask and its sidecar under provisional names, which `give_names` replaces.

    Args:
        labels: class indices [height, width], uint8 or uint16; of a volume with a depth before, or its values, fp32,
            several of a voxel last.
        mask: the file.
        source: the image, or the volume, whose header a NIfTI mask takes.
        stage: the method that made it.
        made_by: digest of all that its answers depend on.
        inputs: the files that were read.

    Raises:
        OSError: the disk is full or read-only, or the folder is gone.
        ImageError: the volume was changed meanwhile.
    """
    content = content_of(labels, mask, source)
    sidecar = Sidecar(stage, made_by, list(inputs), hashlib.sha256(content).hexdigest())
    path = sidecar_of(mask)
    path.parent.mkdir(exist_ok=True)
    unfinished(path).write_bytes(msgspec.json.format(msgspec.json.encode(sidecar)))
    unfinished(mask).write_bytes(content)


def give_names(masks: Sequence[Path]) -> None:
    """Sync masks of one folder with their sidecars, and give them their names: the sidecars first.

    Raises:
        OSError: as `write`.
    """
    sidecars = [sidecar_of(mask) for mask in masks]
    sync_files([unfinished(path) for path in [*sidecars, *masks]])
    for paths in (sidecars, masks):
        for path in paths:
            unfinished(path).replace(path)
        sync_folder(paths[0].parent)


def unfinished(path: Path) -> Path:
    """Return the provisional name of a file."""
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def content_of(labels: np.ndarray, mask: Path, source: Path) -> bytes:
    """Return the bytes of a mask's file.

    Raises:
        ImageError: as `save`.
    """
    if mask.suffix == PNG:
        Image.fromarray(labels).save(out := io.BytesIO(), "PNG", compress_level=PNG_LEVEL)
        return out.getvalue()
    with reading(source, "a volume"):
        return (format_in(VOLUMES, source).write or write_array)(labels, source)


def is_made(mask: Path, files: Sequence[Path], made_by: str) -> bool:
    """Return whether a mask is there that its sidecar says was made of these files by that predictor.

    Raises:
        OSError: one of the files is gone.
        RequestError: as `check_own`.
    """
    sidecar = check_own(mask)
    return (
        sidecar is not None
        and (sidecar.schema, sidecar.made_by) == (SCHEMA, made_by)
        and len(sidecar.inputs) == len(files)
        and all(is_same(known, path) for known, path in zip(sidecar.inputs, files, strict=True))
        and sidecar.mask_sha256 == file_digest(mask)
    )


def is_same(known: InputFile, path: Path) -> bool:
    """Return whether a file is the one that was described; where its time differs alone, its content decides."""
    now = seen(path)
    if now == (known.name, known.bytes, known.changed_ns):
        return True
    return now[:2] == (known.name, known.bytes) and described(path).sha256 == known.sha256


def check_own(mask: Path) -> Sidecar | None:
    """Return the sidecar of a mask; None where no mask is there, or the sidecar can't be read.

    Raises:
        RequestError: a file of the mask's name is there without any sidecar: it isn't one of ours.
    """
    if not mask.exists():
        return None
    try:
        return msgspec.json.decode(sidecar_of(mask).read_bytes(), type=Sidecar)
    except FileNotFoundError:
        raise RequestError(
            f"{mask}: it is there and no mask of pipeline.predict; name another folder by --out"
        ) from None
    except (OSError, msgspec.MsgspecError):
        return None


def remove(mask: Path) -> None:
    """Remove a mask and its sidecar, if they are there."""
    mask.unlink(missing_ok=True)
    sidecar_of(mask).unlink(missing_ok=True)


def clear_unfinished(folder: Path, names: Iterable[str]) -> None:
    """Remove what a process that was killed had written of these files, or of their sidecars."""
    wanted = {*(written := list(names)), *(f"{name}.json" for name in written)}
    for path in [*folder.glob("*.part"), *(folder / SIDECARS).glob("*.part")]:
        name, _, process = path.name.removesuffix(".part").rpartition(".")
        if name in wanted and process.isdigit():
            path.unlink(missing_ok=True)
