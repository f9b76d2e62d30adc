"""Cases, an image or a volume each, and their reading: one file or, by nnU-Net's names, a file for each channel."""

import hashlib
import io
import math
import os
import struct
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL.JpegImagePlugin import JpegImageFile

from pipeline.config.data_request import GIB
from pipeline.devices.host import free_memory_bytes
from pipeline.errors import ImageError, typed_line
from pipeline.inputs.folders import BITS_OF_A_SENSOR, Sample, read_sample, values_in_file
from pipeline.inputs.formats import ORIENTATION
from pipeline.inputs.image_files import alike
from pipeline.inputs.input_contract import InputContract
from pipeline.inputs.windows import viewable
from pipeline.predict import mask_files
from pipeline.predict.mask_files import OVERLAYS, PNG, InputFile, Sidecar
from pipeline.predict.report import TIMER

BYTES_OF_A_VALUE = 8  # as it is read, and in fp32
BYTES_OF_A_GROUP = 2**24  # of the files that a worker is given at once
JPEG = (".jpg", ".jpeg")
# Of JPEG files that a GPU decodes to the same values as Pillow (ITU-T T.81, 1992, annex B).
END, YCBCR = b"\xff\xd9", 1  # the last marker, and Adobe's number of that transform
BASELINE = b"\xff\xc0\x00\x11\x08"  # begins the header of a baseline frame of three channels in 8 bits
# Of the factors of luma along width and height, both chromas having 1 and 1: pixels of luma for each of chroma.
SAMPLINGS = {(1, 1), (2, 1), (2, 2)}
LEAST_SIDE, MOST_PIXELS = 8, 2**26
DARK = 2 ** max(BITS_OF_A_SENSOR)  # no value of an image of fewer bits in 16 reaches it
CHANNELS = 3


@dataclass(frozen=True)
class Case(Sample):
    """The files of one mask."""

    suffix: str = PNG  # of the mask
    is_volume: bool = False  # it is read as a volume
    sidecars: tuple[Sidecar, ...] = ()  # of its mask, if there are any

    def reason(self, error: BaseException) -> str:
        """Return why it has no mask, in one line that names its file."""
        if isinstance(error, OSError) and error.strerror:
            return f"{error.filename}: {error.strerror}"
        return str(error) if isinstance(error, ImageError) else f"{self.files[0]}: {typed_line(error)}"

    @property
    def mask(self) -> str:
        """File name of the mask."""
        return self.name + self.suffix

    def is_made(self, folder: Path, made_by: str) -> bool:
        """Return whether its mask is in a folder, made of its files by that predictor."""
        return mask_files.is_made(folder / self.mask, self.files, made_by, self.sidecars)

    def remove_mask(self, folder: Path) -> None:
        """Remove its mask, if one was there before."""
        if self.sidecars:
            (folder / self.mask).unlink(missing_ok=True)


def read_case(case: Case, contract: InputContract, kind: np.dtype | None) -> np.ndarray:
    """Read a case [height, width, channels], uint8, uint16 or fp32; volumes have a depth before the height."""
    image = read_sample(case, contract, case.is_volume)
    dark = image.dtype == np.uint16 and contract.normalize != "zscore" and 0 < image.max() < DARK
    if kind is not None and image.dtype != kind and (dark or contract.scale is not None):
        raise ImageError(
            f"{case.files[0]}: {image.dtype} up to {image.max():g}, and the run's images are {kind}; give {kind} that "
            "are scaled as those, or measure with a folder of such images"
        )
    return alike([image], [str(case.files[0])], contract.scale)[0]


@dataclass(frozen=True)
class Jpeg:
    """A file that a GPU can decode."""

    content: np.ndarray  # of the file, uint8
    shape: tuple[int, int, int]  # height, width and channels
    per_chroma: tuple[int, int]  # pixels of luma for each of chroma, along the width and along the height
    dtype = np.dtype(np.uint8)


def parse(content: bytes) -> Jpeg | None:
    """Return a whole baseline file in YCbCr, 8 bits, upright; None for any other content.

    Files without their end marker are left to Pillow, which says what is wrong.
    """
    image, is_upright = None, False
    with suppress(Exception), warnings.catch_warnings(action="ignore"):  # of a file that Pillow refuses later
        image = JpegImageFile(io.BytesIO(content))
        is_upright = image.getexif().get(ORIENTATION, 1) == 1
    if image is None or not is_upright or image.info.get("adobe_transform", YCBCR) != YCBCR:
        return None
    sides = image.height, image.width
    numbers, across, along, _ = zip(*image.layer, strict=True)
    luma, *chromas = zip(across, along, strict=True)
    is_baseline = content.endswith(END) and BASELINE + struct.pack(">HH", *sides) in content
    in_range = min(sides) >= LEAST_SIDE and math.prod(sides) <= MOST_PIXELS
    # libjpeg tells YCbCr from RGB by the channels' numbers.
    if not is_baseline or not in_range or numbers != (1, 2, 3) or luma not in SAMPLINGS or {*chromas} != {(1, 1)}:
        return None
    return Jpeg(np.frombuffer(content, np.uint8), (*sides, CHANNELS), luma)


@dataclass(frozen=True)
class Read:
    """A case as a worker has read it."""

    image: Any  # an array, or a `Jpeg` that a GPU decodes
    inputs: list[InputFile]  # its files
    shown: np.ndarray | None = None  # [height, width, 3], uint8, for an overlay


@dataclass(frozen=True)
class Reader:
    """Reads cases."""

    contract: InputContract  # of the network's input
    kind: np.dtype | None  # as in `read_case`
    images_in: bool  # the network takes uint8 alone
    overlay: bool = False  # also give the image as it is shown
    encoded: bool = False  # give JPEG files as they are, if a GPU can decode them

    def jpeg(self, case: Case) -> Read | None:
        """Return a JPEG file that a GPU decodes; None for any other case, which `one` reads."""
        file = case.files[0]
        if not self.encoded or len(case.files) > 1 or case.problem or not file.name.lower().endswith(JPEG):
            return None
        with TIMER.within("read"):
            with file.open("rb", buffering=0) as opened:
                state, content = os.fstat(opened.fileno()), opened.read()
            digest = hashlib.sha256(content).hexdigest()
        known = InputFile(mask_files.printable(file.name), state.st_size, state.st_mtime_ns, digest)
        jpeg = parse(content)
        return Read(jpeg, [known]) if jpeg else None

    def one(self, case: Case) -> Read:
        """Read a case; raises ImageError, OSError, MemoryError."""
        if self.overlay and Path(case.mask).parent.name == OVERLAYS:
            raise ImageError(f"{case.files[0]}: its mask would lie among overlays; drop --overlay or rename the folder")
        if case.problem:  # such as a folder's, which may hold anything
            raise ImageError(case.problem)
        needed = BYTES_OF_A_VALUE * sum(values_in_file(file, case.is_volume) for file in case.files)
        if needed > (free := free_memory_bytes()):
            figures = f"{needed / GIB:.4g} GiB, and {free / GIB:.4g} GiB of memory are free"
            raise ImageError(f"{case.files[0]}: reading it takes {figures}")
        with TIMER.within("read"):
            inputs = [mask_files.described(file) for file in case.files]
        image = read_case(case, self.contract, self.kind)
        if self.images_in and image.dtype != np.uint8:
            raise ImageError(f"{case.files[0]}: {image.dtype}, and this bundle takes uint8 alone")
        return Read(image, inputs, viewable(image) if self.overlay else None)


def groups(cases: Iterable[Case], most: int) -> Iterator[list[Case]]:
    """Yield groups of neighbouring cases: at most `most` of them, and one alone if its files are large."""
    group: list[Case] = []
    size = 0
    for case in cases:
        try:
            weight = sum(file.stat().st_size for file in case.files)
        except OSError:  # what is gone is told when it is read
            weight = 0
        if group and (len(group) == most or size + weight > BYTES_OF_A_GROUP):
            yield group
            group, size = [], 0
        group.append(case)
        size += weight
    if group:
        yield group
