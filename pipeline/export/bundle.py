"""A bundle on disk: the digests of its files, and its own loader in a fresh process."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

from pipeline.export.contract import LOADER, ContractError
from pipeline.records.content_digest import file_digest
from pipeline.records.disk import write_text

LIMIT_SECONDS = 600
ERROR = "error: "  # with which a loader that is run by hand begins its line
# In the place of the project's packages stands nothing, which import takes for "not there".
ALONE = """
import runpy, sys
sys.modules |= dict.fromkeys(["unet_ladder", "pipeline", "models", "conf"])
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class BundleFails(Exception):  # noqa: N818 - named for what was found
    """There is no bundle, or its loader gave no answer; the text is the last line that it wrote."""


class Said(TypedDict, total=False):
    """What a bundle's loader prints of its answers, as far as its words ask for it.

    Attributes:
        shape: of the answer.
        dtype: of the answer.
        right: whether it is within the tolerance.
        relative_l2: its distance from the fp32 net's.
        flipped_share: of the pixels, whose class differs from the fp32 net's.
        normalisation: relative L2 of the normalised images to those that the run gave its net.
        same_bits: whether the answer is the exported one, bit for bit.
        masks_moved: how many pixels differ from the exported mask.
        milliseconds: of a call.
        path_milliseconds: of the whole path, from images in the host's memory to their masks there.
    """

    shape: list[int]
    dtype: str
    right: bool
    relative_l2: float
    flipped_share: float
    normalisation: float
    same_bits: bool
    masks_moved: int
    milliseconds: float
    path_milliseconds: float


def ask(folder: Path, *words: str) -> Said:
    """What the loader of a bundle prints for these words of its command line.

    Raises:
        BundleFails: it printed nothing that it should.
    """
    command = [sys.executable, "-I", "-B", "-c", ALONE, str(folder / LOADER), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise BundleFails(f"no answer within {LIMIT_SECONDS} s") from None
    try:
        found: Said = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise BundleFails(last_words(done.stderr) or f"it ended with {done.returncode} and no word") from None
    return found


def last_words(stderr: str) -> str:
    """What a loader ended with, in a line: its error, which a library may tell over several, or else the last one."""
    lines = [" ".join(line.split()) for line in stderr.splitlines() if line.strip()]
    begins = [number for number, line in enumerate(lines) if line.startswith(ERROR)]
    return " ".join(lines[begins[-1] if begins else -1 :]).removeprefix(ERROR)


SUMS = "SHA256SUMS"
CODE = {".py", ".pyc", ".so"}  # which a bundle's loader could import in the place of a package


def write_sums(folder: Path) -> None:
    """SHA-256 of every other file, as sha256sum writes and reads them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    files = [path for path in files if "__pycache__" not in path.parts]
    write_text("".join(f"{file_digest(path)}  {path.relative_to(folder)}\n" for path in files), folder / SUMS)


def read_sums(folder: Path) -> str:
    """The list as it was written.

    Raises:
        ContractError: it can't be read, or is no regular file.
    """
    try:
        if (folder / SUMS).is_file():
            return (folder / SUMS).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        pass
    raise ContractError(f"{folder / SUMS}: no list of digests; export the bundle again")


def bundle_digest(folder: Path) -> str:
    """SHA-256 of the list, and so of all that was exported; errors as of `read_sums`."""
    return hashlib.sha256(read_sums(folder).encode()).hexdigest()


def changed_files(folder: Path) -> list[str]:
    """The files that aren't the ones that were exported, are gone, or are code that was added.

    Raises:
        ContractError: the list of digests can't be read.
    """
    named = [line.partition("  ")[::2] for line in read_sums(folder).splitlines()]
    changed = [name for wanted, name in named if not (folder / name).is_file() or file_digest(folder / name) != wanted]
    there = [path.relative_to(folder) for path in folder.rglob("*") if path.suffix in CODE]
    known = {name for _, name in named}
    added = sorted(str(path) for path in there if str(path) not in known and "__pycache__" not in path.parts)
    return [*changed, *added]
