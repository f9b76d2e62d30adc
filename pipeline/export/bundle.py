"""A bundle on disk: the digests of its files, and its own loader in a fresh process."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, TypedDict

from pipeline.errors import shortened
from pipeline.export.contract import LOADER, ContractError
from pipeline.records.disk import file_digest, write_text
from pipeline.report.formatting import visible

LIMIT_SECONDS = 600
ERROR = "error: "  # begins the line of a loader that is run by hand
# None in sys.modules makes an import of the project's packages fail.
ALONE = """
import runpy, sys
sys.modules |= dict.fromkeys(["unet_ladder", "pipeline", "models", "conf"])
sys.argv[:] = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class BundleFails(Exception):  # noqa: N818 - a finding, not an error
    """A bundle that fails its check, or whose loader gives no answer; the text is its last line."""


class Said(TypedDict, total=False):
    """The JSON that a bundle's loader prints; its options decide which keys are there."""

    shape: list[int]  # of the answer
    dtype: str  # of the answer
    right: bool  # the answer is within the tolerance
    relative_l2: float  # distance from the fp32 network's answer
    flipped_share: float  # share of pixels whose class differs from the fp32 network's
    normalisation: float  # relative L2 of the normalised images to those of the run
    same_bits: bool  # the answer equals the exported one, bit for bit
    finite: bool  # the answers to constant inputs hold no NaN or infinity
    masks_moved: int  # number of pixels that differ from the exported mask
    service: dict[str, Any]  # fields of `Service`: the seconds to the first answer, and the memory
    milliseconds: float  # of a call
    path_milliseconds: float  # from images in host memory to their masks there


def ask(folder: Path, *words: str, cache: Path | None = None) -> Said:
    """Run a bundle's loader with these words, and return what it prints; `cache` keeps what it compiles."""
    command = [sys.executable, "-I", "-B", "-c", ALONE, str(folder / LOADER), *words]
    places = {"TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor", "UNET_KERNELS_KEEP": "."}
    env = os.environ | {name: str(cache / place) for name, place in places.items() if cache}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False, env=env)
    except subprocess.TimeoutExpired:
        raise BundleFails(f"no answer within {LIMIT_SECONDS} s") from None
    try:
        answer: Said = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        died = f"{LOADER} was killed ({signal.strsignal(-done.returncode)}) " if done.returncode < 0 else ""
        said = (died + last_words(done.stderr)).strip() or f"{LOADER} ended with {done.returncode} and no word"
        raise BundleFails(said) from None
    return answer


def last_words(stderr: str) -> str:
    """Return a loader's error in one line, which may have been several, or else its last line."""
    lines = [" ".join(line.split()) for line in stderr.splitlines() if line.strip()]
    begins = [number for number, line in enumerate(lines) if line.startswith(ERROR)]
    return " ".join(lines[begins[-1] if begins else -1 :]).removeprefix(ERROR)


SUMS = "SHA256SUMS"
CODE = {".py", ".pyc", ".so"}  # which a loader could import instead of a package


def write_sums(folder: Path) -> None:
    """Write the SHA-256 of every other file, in the format of sha256sum."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    write_text("".join(f"{file_digest(path)}  {path.relative_to(folder)}\n" for path in files), folder / SUMS)


def read_sums(folder: Path) -> str:
    """Read the list of digests; raises ContractError."""
    try:
        if (folder / SUMS).is_file():
            return (folder / SUMS).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        pass
    raise ContractError(f"{folder / SUMS}: no list of digests; export the bundle again")


def bundle_digest(folder: Path) -> str:
    """Return the SHA-256 of the list, and so of all that was exported; raises ContractError."""
    return hashlib.sha256(read_sums(folder).encode()).hexdigest()


def changed_files(folder: Path) -> list[str]:
    """Return the files that have changed since the export, are gone, or are added code, such as bytecode."""
    named = [line.partition("  ")[::2] for line in read_sums(folder).splitlines()]
    there = {name for _, name in named if os.path.isfile(folder / name)}  # noqa: PTH113 - of any length
    gone = [f"{name} (missing)" if name else SUMS for _, name in named if name not in there]
    changed = [name for wanted, name in named if name in there and file_digest(folder / name) != wanted]
    code = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix in CODE}
    return [shortened(visible(name)) for name in (*gone, *changed, *sorted(code - {name for _, name in named}))]
