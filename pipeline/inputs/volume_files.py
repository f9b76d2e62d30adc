"""Reads volumes as [depth, height, width, channels] in fp32: NIfTI, npy, TIFF of pages, zarr (docs/inputs.md)."""

import importlib
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tifffile

from pipeline.errors import ImageError
from pipeline.inputs.image_files import alike, each
from pipeline.inputs.input_contract import InputContract, LabelRules
from pipeline.inputs.label_files import NNUNET, as_classes, check_apart, of_no_image
from pipeline.inputs.nifti import NiftiError, nifti_values, nifti_voxels
from pipeline.inputs.nifti_placement import apart
from pipeline.inputs.not_the_file import in_its_place
from pipeline.inputs.npy_files import mapped
from pipeline.inputs.tiff_files import tiff_values
from pipeline.inputs.unreadable import UNREADABLE, unreadable
from pipeline.inputs.windows import Named

NIFTI, NPY, TIFF, ZARR = (".nii", ".nii.gz"), (".npy",), (".tif", ".tiff"), (".zarr",)
SUFFIXES = (*NIFTI, *NPY, *TIFF, *ZARR)
# What the readers raise on bytes that are no volume, or that announce more than there can be.
GIVEN_UP = (
    *UNREADABLE, tifffile.TiffFileError, IndexError, MemoryError, ArithmeticError, zlib.error,
    RuntimeError,  # tifffile's, of pages that don't go together
)  # fmt: skip
SHOWN_SERIES = 3
AXES = 3  # of a volume, but for its channels


def suffix_of(path: Path) -> str:
    """The suffix that says how a volume is read, in lower case; empty where none does."""
    return next(
        (suffix for suffix in sorted(SUFFIXES, key=len, reverse=True) if path.name.lower().endswith(suffix)), ""
    )


def volume_files(path: str | None) -> tuple[list[Path], list[str]]:
    """The volumes of a folder in the order of names, and what else lies there that is no file; a .zarr is a folder.

    Raises:
        ImageError: the folder is missing, holds no volume, or a file that is none.
    """
    folder = Path(path or "")
    if not path or not folder.is_dir():
        raise ImageError(f"data.path={path}: no such folder of volumes")
    seen = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    found = [entry for entry in seen if entry.is_dir() == (suffix_of(entry) in ZARR) and suffix_of(entry)]
    if strangers := [str(entry) for entry in seen if entry.is_file() and entry not in found]:
        raise ImageError(
            f"{', '.join(strangers[:5])}: not a volume; a folder of volumes holds {', '.join(SUFFIXES)} alone"
        )
    if not found:
        raise ImageError(f"data.path={path}: no volume in it; {', '.join(SUFFIXES)} are read")
    return found, [f"{entry.name}: no volume" for entry in seen if entry not in found]


def folder_volumes(
    path: str | None, labels: str | None, contract: InputContract, rules: LabelRules
) -> tuple[list[Named], list[str]]:
    """Every volume of a folder, in the order of names, and what else lies there.

    Raises:
        ImageError: as `volume_files`, files that can't be read, or labels that no rule covers.
    """
    files, left_out = volume_files(path)
    found: list[np.ndarray | None] = [None] * len(files)
    if labels:
        label_files = each(files, lambda file: label_file(file, Path(labels), rules))
        check_apart(files, label_files, f"data.path={path}")
        found = [*as_classes(each(label_files, read_labels), label_files, rules)]
        each(files, lambda file: check_place(file, label_files[files.index(file)]))
        left_out += of_no_image(Path(labels), Path(path or ""), label_files, suffix_of)
    volumes = each(files, lambda file: read_volume(file, contract.channels))
    volumes = alike(volumes, [str(file) for file in files], contract.scale)
    return [Named(*part) for part in zip((file.name for file in files), volumes, found, strict=True)], left_out


def label_file(volume: Path, folder: Path, rules: LabelRules) -> Path:
    """The file with the labels of a volume: of its name, whatever its suffix, where the pattern has none of its own.

    Raises:
        ImageError: there is none.
    """
    stem = volume.name[: -len(suffix_of(volume))]
    suffixes = ("",) if suffix_of(Path(rules.pattern)) else SUFFIXES
    names = [rules.pattern.replace("*", each) for each in dict.fromkeys((stem, stem.removesuffix(NNUNET)))]
    tried = [folder / f"{name}{suffix}" for name in names for suffix in suffixes]
    found = next((path for path in tried if path.exists()), None)
    if found is None:
        kinds = "" if len(suffixes) == 1 else f", nor with {' or '.join(suffixes[1:])}"
        raise ImageError(f"{tried[0]}: no such labels{kinds}; data.label_pattern names them otherwise")
    return found


def check_place(volume: Path, labels: Path) -> None:
    """That labels lie where their volume does, as far as both files say where.

    Raises:
        ImageError: they don't, or can't be read.
    """
    if not {suffix_of(volume), suffix_of(labels)} <= set(NIFTI):
        return
    try:
        distance = apart(volume, labels)
    except (*GIVEN_UP, NiftiError):  # whoever reads the values says what it is
        return
    if distance is not None:
        raise ImageError(
            f"{labels}: its header places a corner {distance:.3g} from that of {volume.name}, in its unit: mirrored or "
            "of another spacing; give it the volume's header if voxel belongs to voxel"
        )


def read_volume(path: Path, channels: int) -> np.ndarray:
    """A volume [depth, height, width, channels], fp32, as its file scales it.

    Raises:
        ImageError: it can't be read, has other axes or channels, or holds NaN.
    """
    values = values_of(path)
    if values.ndim == AXES:
        values = values[..., None]
    if values.ndim != AXES + 1 or not values.size:
        raise ImageError(
            f"{path}: an array of shape {list(values.shape)}; [depth, height, width], or channels after it"
        )
    if values.shape[-1] != channels:
        first = "; they come first there, and are read last" if values.shape[0] == channels else ""
        raise ImageError(f"{path}: {values.shape[-1]} channels, data.channels={channels}{first}")
    if values.dtype.kind not in "buif":
        raise ImageError(f"{path}: values of type {values.dtype}; integers and floating point are read")
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is told
        volume = values.astype(np.float32)
    if not np.isfinite(volume).all():
        raise ImageError(f"{path}: it holds NaN or infinite values")
    return volume


def read_labels(path: Path) -> np.ndarray:
    """The values [depth, height, width] of labels, int64.

    Raises:
        ImageError: it can't be read, has other axes, or values that are no integers.
    """
    values = values_of(path)
    values = values[..., 0] if values.ndim == AXES + 1 and values.shape[-1] == 1 else values
    if values.ndim != AXES:
        raise ImageError(f"{path}: labels of shape {list(values.shape)}; [depth, height, width]")
    if values.dtype.kind not in "buif" or not (values == np.floor(values)).all():
        raise ImageError(f"{path}: labels are no integers")
    return values.astype(np.int64)


def values_of(path: Path) -> np.ndarray:
    """A file's values as they are meant, [depth, height, width] or with channels after it.

    Raises:
        ImageError: it can't be read.
    """
    try:
        return READERS[suffix_of(path)](path)
    except NiftiError as error:
        raise ImageError(f"{path}: {in_its_place(path) or error}") from None
    except GIVEN_UP as error:
        raise unreadable(path, error, "a volume") from None


def voxels(path: Path) -> int:
    """How many values a file's volume has, by its header; 0 where that can't be told."""
    kind = suffix_of(path)
    try:
        if kind in NIFTI:
            return nifti_voxels(path)
        if kind in NPY:
            return int(mapped(path).size)
        if kind in TIFF:
            with tifffile.TiffFile(path) as file:
                return math.prod(file.series[0].shape)
        return math.prod(_opened(path).shape)
    except (*GIVEN_UP, NiftiError, ImageError):
        return 0


def values_in_volumes(path: str | None) -> int:
    """How many values the volumes of a folder have, by their headers; errors as of `volume_files`."""
    return sum(map(voxels, volume_files(path)[0]))


def _array(path: Path) -> np.ndarray:
    return np.array(mapped(path))


def _pages(path: Path) -> np.ndarray:
    """A TIFF's pages one below the other; channels come last, also where ImageJ wrote a page for each.

    Raises:
        ImageError: it holds several series of pages, or volumes at several times.
    """
    with tifffile.TiffFile(path) as file:
        if len(file.series) > 1:
            shapes = ", ".join("×".join(map(str, each.shape)) for each in file.series[:SHOWN_SERIES])
            raise ImageError(f"{path}: {len(file.series)} series of pages ({shapes}); save each as a volume of its own")
        values, axes = tiff_values(path, file), file.series[0].axes
    if values.ndim == AXES:
        return values
    if "T" in axes:
        raise ImageError(f"{path}: volumes at several times (axes {axes}); save each as one of its own")
    return np.moveaxis(values, axes.index("C"), -1) if "C" in axes else values


def _opened(path: Path) -> Any:
    """A zarr array, not read yet.

    Raises:
        ImageError: zarr isn't installed, or it is a group of several.
    """
    try:
        zarr = importlib.import_module("zarr")
    except ImportError:
        raise ImageError(f"{path}: zarr isn't installed; python -m pip install zarr installs it") from None
    found = zarr.open(str(path), mode="r")
    if not hasattr(found, "shape"):
        raise ImageError(f"{path}: a group of arrays; name the folder of one")
    return found


def _zarr(path: Path) -> np.ndarray:
    return np.asarray(_opened(path)[...])


READERS: dict[str, Callable[[Path], np.ndarray]] = {
    **dict.fromkeys(NIFTI, nifti_values),
    **dict.fromkeys(NPY, _array),
    **dict.fromkeys(TIFF, _pages),
    **dict.fromkeys(ZARR, _zarr),
}
