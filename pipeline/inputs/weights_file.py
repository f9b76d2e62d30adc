"""Checks of a weights file by its name and header, without torch, before anything starts."""

import json
import struct
from pathlib import Path
from typing import Any

from conf import ROOT
from pipeline.errors import CheckpointError

SAFE = ".safetensors"
GIT_LFS = b"version https://git-lfs"  # first bytes of a Git LFS pointer, which replaces a file
ARCHIVE, GZIP = b"PK\x03\x04", b"\x1f\x8b"  # first bytes of files by torch.save and gzip
PICKLES = {".pt", ".pth", ".bin", ".ckpt"}
READABLE = f"weights are read from {SAFE} and, as a state dict, {', '.join(sorted(PICKLES))}"
LONGEST_HEADER = 100_000_000  # bytes, the limit of safetensors
FLOATING = ("F", "BF")  # first letters of floating types in a header
CONVOLUTION_RANKS = (3, 4, 5)  # axes of its weight: [out, in, extent, …]


def find(path: str) -> Path:
    """Return the file, relative to the current folder or to the project's root.

    Raises:
        CheckpointError: there is none.
    """
    for candidate in (Path(path), ROOT / path):
        if candidate.is_file():
            return candidate
    what = "is a folder, not a file of weights" if Path(path).is_dir() else "no such file"
    raise CheckpointError(f"model.checkpoint={path}: {what}; {READABLE}")


def header(path: Path) -> tuple[dict[str, Any], int]:
    """Read a safetensors file's header; also return the number of bytes behind it.

    8 bytes hold the header's length, then comes its JSON (https://huggingface.co/docs/safetensors).

    Raises:
        ValueError: there is none.
    """
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        rest = path.stat().st_size - 8 - length
        if not 0 < length <= LONGEST_HEADER or rest < 0:
            raise ValueError("its header is cut off, or it has none")
        entries = json.loads(file.read(length))
    if not isinstance(entries, dict):
        raise ValueError("its header is no mapping")  # noqa: TRY004 - callers catch one type
    return entries, rest


def kind_of(path: Path) -> str:
    """Return what a file is by its first bytes if its suffix says otherwise, in a clause; else an empty text."""
    try:
        with path.open("rb") as file:
            first = file.read(len(GIT_LFS))
    except OSError:
        return ""
    if first == GIT_LFS:
        return "a pointer of Git LFS instead of the file; git lfs pull fetches it"
    if path.suffix.lower() == SAFE:
        return "a file of torch.save's by its first bytes; call it .pt" if first.startswith(ARCHIVE) else ""
    if first[8:9] == b"{":
        return f"a file of safetensors by its first bytes; call it {SAFE}"
    return "compressed by gzip; unpack it" if first.startswith(GZIP) else ""


def check(path: str) -> None:
    """Raise if a file can't hold the weights of a network; whether they fit this network is checked with torch.

    Raises:
        CheckpointError: there is no file, its format isn't read, or its header shows that it is cut off or holds whole
            numbers.
    """
    file = find(path)
    if file.suffix.lower() in PICKLES:
        return
    if file.suffix.lower() != SAFE:
        raise CheckpointError(f"{path}: {file.suffix or 'no suffix'}: {READABLE}")
    try:
        wrong = fault_in(*header(file))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: {kind_of(file) or f'no file of weights that can be read ({error})'}") from None
    if wrong:
        raise CheckpointError(f"{path}: {wrong}")


def fault_in(found: dict[str, object], size: int) -> str:
    """Return what is wrong with a header, in a clause; an empty text if nothing is.

    Args:
        found: the header.
        size: number of bytes behind it.
    """
    tensors = {name: entry for name, entry in found.items() if name != "__metadata__" and isinstance(entry, dict)}
    if not tensors:
        return "no tensors in it; save model.state_dict()"
    ends = [entry["data_offsets"][1] for entry in tensors.values() if _is_pair(entry.get("data_offsets"))]
    if ends and max(ends) > size:
        return f"cut off: its header speaks of {max(ends):,} bytes of weights, and {size:,} are there"
    for name, entry in tensors.items():
        kind, shape = str(entry.get("dtype")), entry.get("shape")
        whole = not kind.startswith(FLOATING) and isinstance(shape, list) and len(shape) in CONVOLUTION_RANKS
        if whole and name.endswith("weight"):
            return f"{name} is {kind}, and a convolution computes with floats; a conversion would change its values"
    return ""


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(part) is int for part in value)
