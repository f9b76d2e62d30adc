"""The cases of a folder: an image or a volume each, one file or, by nnU-Net's names, a file for each channel."""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.config.request_error import RequestError
from pipeline.errors import ImageError
from pipeline.inputs.formats import IMAGES as IMAGE_FORMATS
from pipeline.inputs.formats import VOLUMES as VOLUME_FORMATS
from pipeline.inputs.formats import suffix_in, suffixes_of
from pipeline.inputs.image_files import alike, read_image
from pipeline.inputs.input_contract import InputContract
from pipeline.inputs.volume_files import is_volume, read_volume
from pipeline.predict.mask_files import PNG, mask_suffix
from pipeline.records.data_words import IMAGES, VOLUMES

CHANNEL = re.compile(r"(?P<case>.+)_(?P<number>\d{4})")  # in nnU-Net's file names, before the suffix
MOST_NAMED = 5


@dataclass(frozen=True)
class Case:
    """The files of one mask.

    Attributes:
        name: the mask's file name without its suffix.
        files: of its channels, in order.
        problem: why they can't be read, if the names show it.
        suffix: of the mask: .png, or of a volume its own.
    """

    name: str
    files: tuple[Path, ...]
    problem: str = ""
    suffix: str = PNG

    @property
    def mask(self) -> str:
        """File name of the mask."""
        return self.name + self.suffix

    @property
    def is_volume(self) -> bool:
        """True if it is read as a volume."""
        return self.suffix != PNG


def cases_in(folder: Path, nnunet: bool, volumes: bool) -> tuple[list[Case], list[str]]:
    """Return the cases of a folder in the order of names, and its other files; hidden files are skipped.

    Args:
        folder: of the images.
        nnunet: case_0000.png is the first channel of `case`.
        volumes: look for volumes instead of images.

    Raises:
        RequestError: there is no such folder, no image in it, or two images would share a mask.
    """
    words, formats = (VOLUMES, VOLUME_FORMATS) if volumes else (IMAGES, IMAGE_FORMATS)
    if not folder.is_dir():
        raise RequestError(f"{folder}: no such folder of {words.samples}")
    seen = sorted(file for file in folder.iterdir() if not file.name.startswith("."))
    files = [*filter(is_volume if volumes else is_image, seen)]
    if not files:
        raise RequestError(f"{folder}: no {words.sample} in it; {', '.join(suffixes_of(formats))} are read")
    one_each = [case_of((file,), stem(file, volumes), volumes) for file in files]
    cases = by_channels(files, volumes) if nnunet else one_each
    if twice := [name for name, number in Counter(case.name for case in cases).items() if number > 1]:
        same = [case for case in cases if case.name == twice[0]]
        names = ", ".join(file.name for case in same for file in case.files)
        raise RequestError(f"{folder}: {names} would share the mask {same[0].mask}; give each a name of its own")
    return cases, [file.name for file in seen if file not in files]


def is_image(file: Path) -> bool:
    """Return whether an entry is an image by its name; a broken link counts, and can't be read."""
    there = file.is_file() or (file.is_symlink() and not file.exists())
    return there and bool(suffix_in(IMAGE_FORMATS, file))


def case_of(files: tuple[Path, ...], name: str, volumes: bool, problem: str = "") -> Case:
    """Return the case of these files."""
    return Case(name, files, problem, mask_suffix(files[0]) if volumes else PNG)


def stem(file: Path, volumes: bool) -> str:
    """Return a file's name without the suffix of its format, such as .nii.gz."""
    return file.name[: -len(suffix_in(VOLUME_FORMATS, file))] if volumes else file.stem


def by_channels(files: list[Path], volumes: bool) -> list[Case]:
    """Return nnU-Net's cases; names without a channel, or with a gap, are problems."""
    by_case: dict[str, dict[int, list[Path]]] = defaultdict(lambda: defaultdict(list))
    nameless = []
    for file in files:
        name = stem(file, volumes)
        if match := CHANNEL.fullmatch(name):
            by_case[match["case"]][int(match["number"])].append(file)
        else:
            wanted = f"{name}_0000{file.name.removeprefix(name)}"
            nameless.append(case_of((file,), name, volumes, f"{file}: no channel in its name; {wanted}"))
    cases = [_of_channels(*part, volumes) for part in by_case.items()]
    return sorted([*nameless, *cases], key=lambda case: case.name)


def _of_channels(name: str, channels: dict[int, list[Path]], volumes: bool) -> Case:
    """Return the case of these channels."""
    files = tuple(file for number in sorted(channels) for file in channels[number])
    if sorted(channels) == list(range(len(files))):
        return case_of(files, name, volumes)
    names = ", ".join(file.name for file in files[:MOST_NAMED])
    problem = f"{files[0].parent / name}: channels {names}; one file of each from _0000 on is wanted"
    return case_of(files, name, volumes, problem)


def read_case(case: Case, contract: InputContract, kind: np.dtype | None) -> np.ndarray:
    """Read a case [height, width, channels], uint8, uint16 or fp32; volumes have a depth before the height.

    Args:
        case: the case.
        contract: of the network's input.
        kind: type of the run's images, for which `contract.scale` was chosen; None if unknown.

    Raises:
        ImageError: a file can't be read, or doesn't fit the network; one line.
    """
    if case.problem:
        raise ImageError(case.problem)
    each, rest = divmod(contract.channels, len(case.files))
    if rest:
        raise ImageError(f"{case.files[0]}: {len(case.files)} files of channels, the network takes {contract.channels}")
    names = [str(file) for file in case.files]
    read = read_volume if case.is_volume else read_image
    images = alike([read(file, each) for file in case.files], names, contract.scale)
    if len({part.shape for part in images}) > 1:
        sizes = ", ".join("×".join(map(str, part.shape[:-1])) for part in images)
        raise ImageError(f"{case.files[0]}: the channels' files are of several sizes: {sizes}")
    image = np.concatenate(images, axis=-1)
    if contract.scale is not None and kind is not None and image.dtype != kind:
        raise ImageError(
            f"{names[0]}: {image.dtype}, and data.scale={contract.scale:g} was chosen for {kind}; give {kind} that are "
            "scaled as the run's images, or measure with a folder of such images"
        )
    return image
