"""The images of a folder as cases: one file each, or by nnU-Net's names one file for each channel."""

import hashlib
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models.errors import ImageError
from models.image_files import SUFFIXES, alike, read_image
from models.input_contract import InputContract
from pipeline.config.request_error import RequestError

CHANNEL = re.compile(r"(?P<case>.+)_(?P<number>\d{4})")  # of nnU-Net's file names, before the suffix
MOST_NAMED = 5


@dataclass(frozen=True)
class Case:
    """What one mask is made of.

    Attributes:
        name: the mask's file name without its suffix.
        files: of its channels, in order.
        problem: why it can't be read, known by the names alone; empty where nothing is.
    """

    name: str
    files: tuple[Path, ...]
    problem: str = ""

    @property
    def mask(self) -> str:
        """The mask's file name."""
        return f"{self.name}.png"

    @property
    def digest(self) -> str:
        """SHA-256 of the files' names, sizes and times of change; other files have another one.

        Raises:
            OSError: a file is gone.
        """
        seen = [(file.name, (found := file.stat()).st_size, found.st_mtime_ns) for file in self.files]
        return hashlib.sha256(repr(seen).encode()).hexdigest()


def cases_in(folder: Path, nnunet: bool) -> tuple[list[Case], list[str]]:
    """The cases of a folder in the order of names, and the files that are no images; hidden ones are passed over.

    Args:
        folder: of the images.
        nnunet: whether case_0000.png is the first channel of `case`.

    Raises:
        RequestError: there is no such folder, no image in it, or two images of one mask.
    """
    if not folder.is_dir():
        raise RequestError(f"{folder}: no such folder of images")
    seen = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    files = [file for file in seen if file.is_file() and file.suffix.lower() in SUFFIXES]
    if not files:
        raise RequestError(f"{folder}: no image in it; {', '.join(sorted(SUFFIXES))} are read")
    cases = by_channels(files) if nnunet else [Case(file.stem, (file,)) for file in files]
    if twice := [name for name, number in Counter(case.name for case in cases).items() if number > 1]:
        names = ", ".join(file.name for case in cases if case.name == twice[0] for file in case.files)
        raise RequestError(f"{folder}: {names} would share the mask {twice[0]}.png; give each a name of its own")
    return cases, [file.name for file in seen if file not in files]


def by_channels(files: list[Path]) -> list[Case]:
    """nnU-Net's cases; one whose channels don't count from 0000 on, or that names none, has a problem."""
    found: dict[str, dict[int, list[Path]]] = defaultdict(lambda: defaultdict(list))
    nameless = []
    for file in files:
        if match := CHANNEL.fullmatch(file.stem):
            found[match["case"]][int(match["number"])].append(file)
        else:
            nameless.append(Case(file.stem, (file,), f"{file}: no channel in its name; {file.stem}_0000{file.suffix}"))
    return sorted([*nameless, *(_of_channels(*part) for part in found.items())], key=lambda case: case.name)


def _of_channels(name: str, channels: dict[int, list[Path]]) -> Case:
    """The case of these channels."""
    files = tuple(file for number in sorted(channels) for file in channels[number])
    if sorted(channels) == list(range(len(files))):
        return Case(name, files)
    names = ", ".join(file.name for file in files[:MOST_NAMED])
    return Case(name, files, f"{files[0].parent / name}: channels {names}; one file of each from _0000 on is wanted")


def read_case(case: Case, contract: InputContract, kind: np.dtype | None) -> np.ndarray:
    """The case's image [height, width, channels], uint8, uint16 or fp32, by the rules of docs/inputs.md.

    Args:
        case: which.
        contract: of the net's input.
        kind: the type of the run's own images, which `contract.scale` was chosen for; None where nobody knows.

    Raises:
        ImageError: a file can't be read, or isn't what the net takes; one line.
    """
    if case.problem:
        raise ImageError(case.problem)
    each, rest = divmod(contract.channels, len(case.files))
    if rest:
        raise ImageError(f"{case.files[0]}: {len(case.files)} files of channels, the net takes {contract.channels}")
    names = [str(file) for file in case.files]
    parts = alike([read_image(file, each) for file in case.files], names, contract.scale)
    if len({part.shape for part in parts}) > 1:
        sizes = ", ".join("×".join(map(str, part.shape[:2])) for part in parts)
        raise ImageError(f"{case.files[0]}: the channels' files are of several sizes: {sizes}")
    image = np.concatenate(parts, axis=2)
    if contract.scale is not None and kind is not None and image.dtype != kind:
        raise ImageError(f"{names[0]}: {image.dtype}, and data.scale={contract.scale:g} was chosen for {kind}")
    return image
