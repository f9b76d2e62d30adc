"""Masks as files, in colours if asked for, each with a sidecar that states what made it and of what.

Sidecars are lines of `.masks/SHARE.jsonl`. A sidecar is on disk before its mask takes its name, and it holds the digest
of the mask: after a crash between the two, a mask that was there before doesn't match and is made again. Linux lets one
process at a time change a folder: masks are written in a folder of each process, and renamed together after one sync.
"""

import colorsys
import errno
import hashlib
import io
import json
import os
import re
import struct
import zlib
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from zipfile import ZipFile, ZipInfo

import msgspec
import numpy as np
import tifffile
from PIL import Image

from pipeline.config.request_error import RequestError
from pipeline.errors import ImageError
from pipeline.inputs.formats import NIFTI, TIFF, VOLUMES, place_of, reading, turned, write_array
from pipeline.inputs.input_contract import Axes
from pipeline.predict.report import TIMER
from pipeline.records.disk import file_digest, sync_files, sync_folder

SIDECARS, OVERLAYS = ".masks", "overlays"
LINES, PARTS = ".jsonl", ".parts"  # of a share: its sidecars, and masks without a name
PLACE_BITS = 40  # of a line's first byte in its file
SCHEMA = 1
PNG = ".png"  # of an image's mask; a GeoTIFF's is one, and a volume's has the volume's own format
NPY = ".npy"  # of a volume's mask whose format can't be written
ZARR = ".zarr.zip"
Format = Literal["files", "npy", "zarr", "parquet"]  # parquet: the files of "files" as rows
OF_ALL: dict[Format, str] = {"npy": NPY, "zarr": ZARR}  # suffixes that do not depend on the input
CHUNK_OF_AN_IMAGE, CHUNK_OF_A_VOLUME = (1024, 1024), (64, 256, 256)  # of a zarr array
EIGHT_BITS = 256  # classes
AXES_OF_AN_IMAGE = 2
LEVEL = 1  # of zlib
GOLDEN = 0.618  # of the circle of hues, from class to class
OPAQUE = 0.5  # share of a class's colour in an overlay


@dataclass(frozen=True)
class Form:
    """The files in which masks, or probabilities, are written."""

    format: Format = "files"  # of the files
    scores: bool = False  # probabilities are written instead of classes

    def suffix(self, file: Path, volumes: bool) -> str:
        """Return the suffix of a mask of a file: that of the format, or one that follows from the input's."""
        if self.format in OF_ALL:
            return OF_ALL[self.format]
        if volumes:
            return VOLUMES.suffix(file) if VOLUMES.of(file).write else NPY
        if self.scores:
            return file.suffix if TIFF.suffix(file) else NPY
        return file.suffix if place_of(file) else PNG


FILES = Form()


@dataclass(frozen=True)
class Look:
    """The look of masks."""

    palette: tuple[tuple[int, int, int], ...] = ()  # red, green and blue of each class; none: grey
    overlay: bool = False  # also write each image under the colours of its classes
    volumes: bool = False  # they are of volumes
    axes: Axes = "zyx"  # order of a NIfTI mask's
    compression: int = LEVEL  # level of zlib, from 0 to 9, in PNG, TIFF of images and zarr
    classes: int | None = None  # their number; None if unknown

    @property
    def is_dark(self) -> bool:
        """Viewers show a PNG mask nearly black."""
        return not self.palette and self.classes != 2


PLAIN = Look()


def palette_of(listed: Sequence[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Return 256 colours: those that are listed, else black of class 0, and hues of the others far from each other."""
    hues = [colorsys.hsv_to_rgb(GOLDEN * number % 1, 1 - number % 3 / 4, 1) for number in range(256)]
    made = [(0, 0, 0), *((round(255 * red), round(255 * green), round(255 * blue)) for red, green, blue in hues)]
    return (*listed, *made[len(listed) : 256])


class InputFile(msgspec.Struct, frozen=True):
    """A file that a mask was made of."""

    name: str  # without its folder
    bytes: int  # its size; of a folder, of all its files
    changed_ns: int  # time of its last change; of a folder, the sum over its files
    sha256: str  # of its content


class Sidecar(msgspec.Struct, frozen=True):
    """The statement about a mask."""

    mask: str  # its path in the folder
    stage: str  # the method that made it
    made_by: str
    inputs: list[InputFile]  # the files of the image or volume
    mask_sha256: str  # of the mask's content
    schema: int = SCHEMA  # of this file


SIDECAR = msgspec.json.Decoder(Sidecar)
TORN = re.compile(rb'\{"mask":("(?:[^"\\]|\\.)*")')  # the begin of a line, with the mask's name


def described(path: Path) -> InputFile:
    """Return the description of a file, or of a folder's files."""
    name, size, changed = seen(path)
    if not path.is_dir():
        return InputFile(name, size, changed, file_digest(path))
    content = hashlib.sha256()
    for file in files_of(path):
        content.update(os.fsencode(f"{file.relative_to(path)} {file_digest(file)}\n"))
    return InputFile(name, size, changed, content.hexdigest())


def seen(path: Path) -> tuple[str, int, int]:
    """Return name, size and time of change of a file or a folder."""
    states = [file.stat() for file in files_of(path)]
    return printable(path.name), sum(state.st_size for state in states), sum(state.st_mtime_ns for state in states)


def files_of(path: Path) -> list[Path]:
    """Return the file itself, or all files of a folder in order."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def overlay_of(mask: str) -> str:
    """Return the name of a mask's overlay."""
    path = Path(mask).with_suffix(PNG)
    return (path.parent / OVERLAYS / path.name).as_posix()


def printable(name: str) -> str:
    """Return a file's name with an escape for each byte that isn't UTF-8."""
    return os.fsencode(name).decode(errors="backslashreplace")


@dataclass
class Writer:
    """Writes masks without names, which `give_names` gives them, and their sidecars."""

    folder: Path  # of the masks
    stage: str  # the method that makes them
    made_by: str  # digest of all that its answers depend on
    share: str  # name of the share, of which one call at a time makes masks
    look: Look = PLAIN
    number: int = 0  # of the files so far
    lines: list[bytes] = field(default_factory=list)  # sidecars that aren't written

    def write(
        self, labels: np.ndarray, mask: str, source: Path, inputs: Sequence[InputFile], shown: np.ndarray | None = None
    ) -> dict[str, str]:
        """Write a mask; return the names that its files are to get, by their paths in the folder of sidecars."""
        with TIMER.within("encode"):
            contents = {mask: content_of(labels, self.folder / mask, source, self.look)}
        digest = hashlib.sha256(contents[mask]).hexdigest()
        sidecar = Sidecar(printable(mask), self.stage, self.made_by, list(inputs), digest)
        if shown is not None:
            contents[overlay_of(mask)] = overlay(labels, shown, self.look)
        parts = f"{self.share}{PARTS}/{os.getpid()}"
        if not self.number:
            (self.folder / SIDECARS / parts).mkdir(parents=True, exist_ok=True)
        names = {}
        for name, content in contents.items():
            part = f"{parts}/{self.number}"
            (self.folder / SIDECARS / part).write_bytes(content)
            names[part] = name
            self.number += 1
        self.lines.append(msgspec.json.encode(sidecar))
        return names

    def flush(self) -> None:
        """Write the sidecars of all masks so far; a line break before them ends what a killed process left."""
        if self.lines:
            content = b"\n".join([b"", *self.lines, b""])
            with (self.folder / SIDECARS / f"{self.share}{LINES}").open("ab", buffering=0) as file:
                if file.write(content) < len(content):  # a disk that fills up takes a part, and no error is raised
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)
            self.lines = []


def give_names(folder: Path, names: Mapping[str, str]) -> None:
    """Sync masks with their sidecars, and give them their names, unless another process that was killed has."""
    sidecars = folder / SIDECARS
    renamed = [(sidecars / part, folder / name) for part, name in names.items()]
    places = {mask.parent for _, mask in renamed}
    for place in places - {folder}:
        place.mkdir(parents=True, exist_ok=True)
    sync_files([*sidecars.glob(f"*{LINES}"), *(part for part, _ in renamed)])
    for part, mask in renamed:
        try:
            part.replace(mask)
        except FileNotFoundError:
            if not mask.exists():
                raise
    for place in places:
        sync_folder(place)


def stated(line: bytes) -> Sidecar | None:
    """Return a line's sidecar; of a line that a killed process left, one that no content matches."""
    with suppress(msgspec.MsgspecError):
        return SIDECAR.decode(line)
    with suppress(msgspec.MsgspecError):
        return Sidecar(msgspec.json.decode(torn[1], type=str), "", "", [], "") if (torn := TORN.match(line)) else None
    return None


class Statements:
    """The sidecars of a folder by the names of their masks; memory holds 16 bytes for each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read_up_to: dict[Path, int] = {}
        self.digests = self.places = np.zeros(0, np.int64)
        self.read()

    def read(self) -> None:
        """Find the lines that are new."""
        digests, places = array("q"), array("q")
        for path in sorted((self.folder / SIDECARS).glob(f"*{LINES}")):
            if not path.is_file():
                raise RequestError(f"{path}: no regular file; name another folder by --out")
            at = self.read_up_to.setdefault(path, 0)
            number = [*self.read_up_to].index(path)
            with path.open("rb") as file:
                file.seek(at)
                for line in file:
                    if sidecar := stated(line):
                        digests.append(hash(sidecar.mask))
                        places.append(number << PLACE_BITS | at)
                    if not line.endswith(b"\n"):  # another process is at it
                        break
                    at += len(line)
            self.read_up_to[path] = at
        if digests:
            all_digests, all_places = np.append(self.digests, digests), np.append(self.places, places)
            order = np.argsort(all_digests)
            self.digests, self.places = all_digests[order], all_places[order]

    def about(self, mask: str) -> tuple[Sidecar, ...]:
        """Return the sidecars of a mask, of which one may match."""
        if not len(self.digests):
            return ()
        name, paths, found = printable(mask), [*self.read_up_to], []
        first, last = (np.searchsorted(self.digests, hash(name), side) for side in ("left", "right"))
        for place in self.places[first:last].tolist():
            with paths[place >> PLACE_BITS].open("rb") as file:
                file.seek(place & (1 << PLACE_BITS) - 1)
                found.append(stated(file.readline()))
        return tuple(sidecar for sidecar in found if sidecar and sidecar.mask == name)

    def check(self, mask: str) -> tuple[Sidecar, ...]:
        """Return the sidecars of a mask."""
        path = self.folder / mask
        if not path.exists():
            return ()
        if not (found := self.about(mask)):
            self.read()
            found = self.about(mask)
        if not found or not path.is_file():
            raise RequestError(f"{path}: it is there and no mask of pipeline.predict; name another folder by --out")
        return found


def content_of(labels: np.ndarray, mask: Path, source: Path, look: Look) -> bytes:
    """Return the bytes of a mask's file."""
    if look.palette and labels.dtype != np.uint8:
        raise ImageError(f"{source}: more than 256 classes, and a palette has 256 colours; leave --colors out")
    if mask.suffix == PNG:
        return png(labels, look)
    if mask.name.endswith(ZARR):
        return zarr_archive(labels, look)
    if mask.suffix == NPY:
        return write_array(labels, source)
    if TIFF.suffix(mask) and not look.volumes:
        return tiff(labels, source, look)
    with reading(source, "a volume"):
        values = labels.astype(np.float32) if labels.dtype == np.float16 and NIFTI.suffix(mask) else labels
        return (VOLUMES.of(source).write or write_array)(turned(values, source, look.axes), source)


def png(labels: np.ndarray, look: Look) -> bytes:
    """Return a PNG of classes [height, width]: with a palette, or in grey of 1, 8 or 16 bits."""
    if look.palette or labels.dtype != np.uint8:
        picture = Image.fromarray(labels)
        if look.palette:
            picture.putpalette(np.array(look.palette, np.uint8).tobytes())
        picture.save(out := io.BytesIO(), "PNG", compress_level=look.compression)
        return out.getvalue()
    return grey_png(labels, look.compression, one_bit=look.classes == 2 and labels.max(initial=0) <= 1)


def tiff(labels: np.ndarray, source: Path, look: Look) -> bytes:
    """Return a TIFF of an image's classes or probabilities, at the image's place on the earth."""
    place = place_of(source)
    if not place and labels.dtype != np.float16:
        raise ImageError(f"{source}: its place on the earth was removed meanwhile")
    colours = np.array(look.palette, np.uint16).T * 257 if look.palette else None
    tifffile.imwrite(
        out := io.BytesIO(), labels, photometric="minisblack" if colours is None else "palette", colormap=colours,
        planarconfig="contig" if labels.ndim > AXES_OF_AN_IMAGE else None, compression="zlib",
        compressionargs={"level": look.compression}, metadata=None, extratags=place,
    )  # fmt: skip
    return out.getvalue()


def zarr_archive(values: np.ndarray, look: Look) -> bytes:
    """Return a zip archive of a zarr array, version 2, in chunks under zlib; `zarr.storage.ZipStore` opens it.

    https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html; chunks at the end are filled up with zeros.
    """
    sides = CHUNK_OF_A_VOLUME if look.volumes else CHUNK_OF_AN_IMAGE
    chunk = [min(pair) for pair in zip(values.shape, (*sides, EIGHT_BITS), strict=False)]
    about = {
        "zarr_format": 2, "shape": values.shape, "chunks": chunk, "dtype": values.dtype.str, "fill_value": 0,
        "order": "C", "filters": None, "compressor": {"id": "zlib", "level": look.compression},
    }  # fmt: skip
    with ZipFile(out := io.BytesIO(), "w") as archive:
        archive.writestr(ZipInfo(".zarray"), json.dumps(about))
        for number in np.ndindex(*(-(-side // part) for side, part in zip(values.shape, chunk, strict=True))):
            part = values[tuple(slice(at * side, (at + 1) * side) for at, side in zip(number, chunk, strict=True))]
            filled = np.zeros(chunk, values.dtype)
            filled[tuple(map(slice, part.shape))] = part
            archive.writestr(ZipInfo(".".join(map(str, number))), zlib.compress(filled.tobytes(), look.compression))
    return out.getvalue()


def grey_png(labels: np.ndarray, level: int = LEVEL, *, one_bit: bool = False) -> bytes:
    """Return a grey PNG of 8 bits, or of 1 (ISO/IEC 15948, 2004), without filters: Pillow's five take 3 × as long."""
    height, width = labels.shape
    values = np.packbits(labels, axis=1) if one_bit else labels
    rows = np.zeros((height, values.shape[1] + 1), np.uint8)
    rows[:, 1:] = values
    strategy = zlib.Z_RLE if level == LEVEL else zlib.Z_DEFAULT_STRATEGY  # runs alone
    packer = zlib.compressobj(level, strategy=strategy)
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 1 if one_bit else 8, 0, 0, 0, 0),
        b"IDAT": packer.compress(rows.data) + packer.flush(),
        b"IEND": b"",
    }
    sums = {name: struct.pack(">I", zlib.crc32(name + part)) for name, part in parts.items()}
    chunks = (struct.pack(">I", len(part)) + name + part + sums[name] for name, part in parts.items())
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def overlay(labels: np.ndarray, shown: np.ndarray, look: Look) -> bytes:
    """Return a PNG of a picture [height, width, 3] under the colours of its classes but 0."""
    colours = np.array(look.palette or palette_of(()), np.float32)[np.minimum(labels, 255)]
    mixed = np.where(labels[..., None] > 0, (1 - OPAQUE) * shown + OPAQUE * colours, shown)
    Image.fromarray(mixed.round().astype(np.uint8)).save(out := io.BytesIO(), "PNG")
    return out.getvalue()


def is_made(mask: Path, files: Sequence[Path], made_by: str, sidecars: Sequence[Sidecar]) -> bool:
    """Return whether a mask is there that a sidecar says was made of these files by that predictor."""
    digests = [
        sidecar.mask_sha256
        for sidecar in sidecars
        if (sidecar.schema, sidecar.made_by, len(sidecar.inputs)) == (SCHEMA, made_by, len(files))
        and all(is_same(known, path) for known, path in zip(sidecar.inputs, files, strict=True))
    ]
    return bool(digests) and mask.is_file() and file_digest(mask) in digests


def is_same(known: InputFile, path: Path) -> bool:
    """Return whether a file is the one that was described; where its time differs alone, its content decides."""
    *now, changed = seen(path)
    same_time = changed == known.changed_ns
    return now == [known.name, known.bytes] and (same_time or described(path).sha256 == known.sha256)
