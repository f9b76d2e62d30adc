"""A file of weights by its name and its header: what can be said of it without torch, before anything starts."""

import json
import struct
from pathlib import Path
from typing import Any

from conf import ROOT
from pipeline.errors import CheckpointError

SAFE = ".safetensors"
GIT_LFS = b"version https://git-lfs"  # how a pointer of Git LFS begins, which lies in a file's place
ARCHIVE, GZIP = b"PK\x03\x04", b"\x1f\x8b"  # how files of torch.save and of gzip begin
PICKLES = {".pt", ".pth", ".bin", ".ckpt"}
READABLE = f"weights are read from {SAFE} and, as a state dict, {', '.join(sorted(PICKLES))}"
LONGEST_HEADER = 100_000_000  # bytes; safetensors itself reads no longer one
FLOATING = ("F", "BF")  # how the names of floating types begin in a header
CONVOLUTION_RANKS = (3, 4, 5)  # of its weight: [out, in, extent, …]


def find(path: str) -> Path:
    """The file, from where the user is or from the project's root.

    Raises:
        CheckpointError: there is none.
    """
    for candidate in (Path(path), ROOT / path):
        if candidate.is_file():
            return candidate
    what = "is a folder, not a file of weights" if Path(path).is_dir() else "no such file"
    raise CheckpointError(f"model.checkpoint={path}: {what}; {READABLE}")


def header(path: Path) -> tuple[dict[str, Any], int]:
    """A safetensors file's header, and how many bytes follow it: 8 bytes of the header's length, then its JSON.

    Source: https://huggingface.co/docs/safetensors.

    Raises:
        ValueError: there is none.
    """
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        rest = path.stat().st_size - 8 - length
        if not 0 < length <= LONGEST_HEADER or rest < 0:
            raise ValueError("its header is cut off, or it has none")
        found = json.loads(file.read(length))
    if not isinstance(found, dict):
        raise ValueError("its header is no mapping")  # noqa: TRY004 - as all that is wrong with it
    return found, rest


def kind_of(path: Path) -> str:
    """What a file is by its first bytes, where it is of another kind than its suffix says, in a clause; else empty."""
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
    """That a file may hold weights that a net computes with; whether it is of this net's only the net itself tells.

    Raises:
        CheckpointError: there is none, it is of no format that is read, or by its header it is torn or of whole
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
    """What is wrong with a header that so many bytes follow, in a clause; empty where nothing is."""
    tensors = {name: part for name, part in found.items() if name != "__metadata__" and isinstance(part, dict)}
    if not tensors:
        return "no tensors in it; save model.state_dict()"
    ends = [part["data_offsets"][1] for part in tensors.values() if _is_pair(part.get("data_offsets"))]
    if ends and max(ends) > size:
        return f"cut off: its header speaks of {max(ends):,} bytes of weights, and {size:,} are there"
    for name, part in tensors.items():
        kind, shape = str(part.get("dtype")), part.get("shape")
        whole = not kind.startswith(FLOATING) and isinstance(shape, list) and len(shape) in CONVOLUTION_RANKS
        if whole and name.endswith("weight"):
            return f"{name} is {kind}, and a convolution computes with floats; a conversion would change its values"
    return ""


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(part) is int for part in value)
