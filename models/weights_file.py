"""Checks of a weights file by its name and header, without torch, before anything starts."""

import json
import zipfile
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open

from conf import ROOT
from pipeline.errors import CheckpointError, shortened
from pipeline.inputs.formats import GIT_LFS

SAFE = ".safetensors"
ARCHIVE, GZIP = b"PK\x03\x04", b"\x1f\x8b"  # first bytes of files by torch.save and gzip
PICKLES = {".pt", ".pth", ".bin", ".ckpt"}
READABLE = f"weights are read from {SAFE} and, as a state dict, {', '.join(sorted(PICKLES))}"
INDEX = ".index.json"  # of weights in several files
# The weights in a folder of diffusers, transformers and smp, of a fold of nnU-Net, and of a bundle of MONAI.
IN_FOLDERS = [f"{stem}{SAFE}{end}" for end in ("", INDEX) for stem in ("model", "diffusion_pytorch_model")]
IN_FOLDERS += ["pytorch_model.bin", f"pytorch_model.bin{INDEX}", "checkpoint_final.pth", "checkpoint_best.pth"]
IN_FOLDERS += ["models/model.pt"]
MOST_NAMED = 5  # files in a message
FLOATING = ("F", "BF")  # first letters of floating types in a header
CONVOLUTION_RANKS = (3, 4, 5)  # axes of its weight: [out, in, extent, …]


def find(path: str) -> Path:
    """Return a file of weights, or that in a library's folder, relative to the current folder or the project's root."""
    try:
        place = next(filter(Path.exists, (Path(path), ROOT / path)), None)
    except OSError as error:
        raise CheckpointError(f"model.checkpoint={shortened(path, 80)}: {error.strerror}") from None
    if place is None:
        raise CheckpointError(f"model.checkpoint={path}: no such file; {READABLE}")
    if place.is_file():
        return place
    there = [place / name for name in IN_FOLDERS if (place / name).is_file()]
    if there:
        return there[0]
    files: list[Path] = []
    with suppress(OSError):  # of a folder that may not be read, or was removed meanwhile
        within = (each for pattern in ("*", "*/*", "*/*/*") for each in place.glob(pattern))
        files = sorted(each for each in within if each.suffix.lower() in {SAFE, *PICKLES})[:MOST_NAMED]
    choices = " or ".join(f"model.checkpoint={each}" for each in files)
    remedy = f"name the file in it: {choices}" if files else READABLE
    raise CheckpointError(f"model.checkpoint={path}: is a folder, not a file of weights; {remedy}")


def parts_of(path: Path) -> list[Path]:
    """Return the files of weights: those that an index names, or the file itself."""
    if not path.name.endswith(INDEX):
        return [path]
    try:
        names = sorted({str(name) for name in json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()})
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: no index of weights that can be read ({type(error).__name__})") from None
    if missing := next((name for name in names if Path(name).name != name or not path.with_name(name).is_file()), ""):
        raise CheckpointError(f"{path}: it names {missing}, and no such file is beside it")
    return [path.with_name(name) for name in names]


def is_torchscript(path: Path) -> bool:
    """Return whether a file is an archive as torch.jit.save writes it."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/constants.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def kind_of(path: Path) -> str:
    """Return, in a clause, what keeps a file from being read as its name says; an empty text if nothing is seen."""
    try:
        with path.open("rb") as file:
            first = file.read(512)
    except OSError:
        return ""
    named_safe, named_pickle = path.suffix.lower() == SAFE, path.suffix.lower() in PICKLES
    archive, text = first.startswith(ARCHIVE), all(byte >= 32 or byte in b"\t\n\r" for byte in first)
    kinds = {
        "an empty file": not first,
        "a pointer of Git LFS instead of the file; git lfs pull fetches it": first.startswith(GIT_LFS),
        "a file of torch.save's by its first bytes; call it .pt": not named_pickle and archive,
        "cut off: the end of its archive is missing; copy or download it again": archive
        and not zipfile.is_zipfile(path),
        f"a file of safetensors by its first bytes; call it {SAFE}": not named_safe and first[8:9] == b"{",
        "compressed by gzip; unpack it": first.startswith(GZIP),
        "a text file, no file of weights that can be read": text and not named_safe,
    }
    return next((kind for kind, holds in kinds.items() if holds), "")


def check(path: str) -> None:
    """Raise if a file can't hold the weights of a network; whether they fit this network is checked with torch."""
    for file in parts_of(find(path)):
        if wrong := fault_of(file):
            raise CheckpointError(f"{path}: {wrong}")


def fault_of(file: Path) -> str:
    """Return what is wrong with one file by its name and header, in a clause; an empty text if nothing is seen."""
    if file.suffix.lower() in PICKLES:
        return kind_of(file)
    if file.suffix.lower() != SAFE:
        return kind_of(file) or f"{file.suffix or 'no suffix'}: {READABLE}"
    try:
        with safe_open(file, "np") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 - no mapping
        for name, part in slices.items():
            is_convolution = name.endswith("weight") and len(part.get_shape()) in CONVOLUTION_RANKS
            if is_convolution and not part.get_dtype().startswith(FLOATING):
                kind = f"{name} is {part.get_dtype()}, and a convolution computes with floats"
                return f"{kind}; a conversion would change its values"
    except (OSError, SafetensorError) as error:
        return kind_of(file) or f"no file of weights that can be read, or cut off ({error})"
    return "" if slices else "no tensors in it; save model.state_dict()"
