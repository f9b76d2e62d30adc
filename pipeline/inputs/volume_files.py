"""Volumes of any format as [depth, height, width, channels] in fp32, and their labels (docs/inputs.md)."""

import itertools
import math
from pathlib import Path

import numpy as np

from pipeline.errors import ImageError
from pipeline.inputs.formats import AXES, NIFTI, VOLUMES, format_in, nifti_affine, reading, suffix_in, suffixes_of
from pipeline.inputs.image_files import alike, each
from pipeline.inputs.input_contract import InputContract, LabelRules
from pipeline.inputs.label_files import NNUNET, as_classes, check_apart, of_no_image
from pipeline.inputs.windows import Named

FARTHEST = 0.5  # of a voxel's shortest side: nearer corners are the same, as headers are rounded


def is_volume(path: Path) -> bool:
    """Return whether a path has a volume's suffix, and is a folder exactly if that format is one."""
    return bool(suffix_in(VOLUMES, path)) and path.is_dir() == format_in(VOLUMES, path).folder


def volume_files(path: str | None) -> tuple[list[Path], list[str]]:
    """Return the volumes of a folder in the order of names, and a line for each other folder in it.

    Raises:
        ImageError: the folder is missing, holds no volume, or holds a file that is no volume.
    """
    folder = Path(path or "")
    if not path or not folder.is_dir():
        raise ImageError(f"data.path={path}: no such folder of volumes")
    seen = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    volumes = [entry for entry in seen if is_volume(entry)]
    if strangers := [str(entry) for entry in seen if entry.is_file() and entry not in volumes]:
        raise ImageError(
            f"{', '.join(strangers[:5])}: not a volume; "
            f"a folder of volumes holds {', '.join(suffixes_of(VOLUMES))} alone"
        )
    if not volumes:
        raise ImageError(f"data.path={path}: no volume in it; {', '.join(suffixes_of(VOLUMES))} are read")
    return volumes, [f"{entry.name}: no volume" for entry in seen if entry not in volumes]


def folder_volumes(
    path: str | None, labels: str | None, contract: InputContract, rules: LabelRules
) -> tuple[list[Named], list[str]]:
    """Read a folder's volumes in the order of names; also return what is left out.

    Raises:
        ImageError: as `volume_files`; a file can't be read, or no rule covers a label.
    """
    files, left_out = volume_files(path)
    masks: list[np.ndarray | None] = [None] * len(files)
    if labels:
        label_files = each(files, lambda file: label_file(file, Path(labels), rules))
        check_apart(files, label_files, f"data.path={path}")
        masks = [*as_classes(each(label_files, read_labels), label_files, rules)]
        each(files, lambda file: check_place(file, label_files[files.index(file)]))
        left_out += of_no_image(Path(labels), Path(path or ""), label_files, is_volume)
    volumes = each(files, lambda file: read_volume(file, contract.channels))
    volumes = alike(volumes, [str(file) for file in files], contract.scale)
    return [Named(*part) for part in zip((file.name for file in files), volumes, masks, strict=True)], left_out


def label_file(volume: Path, folder: Path, rules: LabelRules) -> Path:
    """Return the label file of a volume; any suffix fits unless the pattern has one.

    Raises:
        ImageError: there is none.
    """
    stem = volume.name[: -len(suffix_in(VOLUMES, volume))]
    suffixes = [""] if suffix_in(VOLUMES, Path(rules.pattern)) else suffixes_of(VOLUMES)
    names = [rules.pattern.replace("*", each) for each in dict.fromkeys((stem, stem.removesuffix(NNUNET)))]
    tried = [folder / f"{name}{suffix}" for name in names for suffix in suffixes]
    file = next((path for path in tried if path.exists()), None)
    if file is None:
        kinds = "" if len(suffixes) == 1 else f", nor with {' or '.join(suffixes[1:])}"
        raise ImageError(f"{tried[0]}: no such labels{kinds}; data.label_pattern names them otherwise")
    return file


def check_place(volume: Path, labels: Path) -> None:
    """Raise if the headers of two NIfTI files place the same voxel at different positions.

    Labels belong to voxels by index: if the headers differ by a mirrored axis or a spacing, the indices don't match.

    Raises:
        ImageError: a corner is farther away than rounding explains.
    """
    if not all(suffix_in([NIFTI], path) for path in (volume, labels)):
        return
    with reading(volume, "a volume"):
        shape, affine = nifti_affine(volume)
        _, other = nifti_affine(labels)
    if affine is None or other is None:
        return
    corners = np.array([[*corner, 1] for corner in itertools.product(*((0, side - 1) for side in shape))])
    distance = float(np.linalg.norm(corners @ (affine - other)[:3].T, axis=1).max())
    if distance > FARTHEST * float(np.linalg.norm(affine[:3, :3], axis=0).min()):
        raise ImageError(
            f"{labels}: its header places a corner {distance:.3g} from that of {volume.name}, in its unit: mirrored or "
            "of another spacing; give it the volume's header if voxel belongs to voxel"
        )


def read_volume(path: Path, channels: int) -> np.ndarray:
    """Read a volume [depth, height, width, channels], fp32, scaled as its file says.

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
    with np.errstate(over="ignore"):  # too large values become infinite, which is refused
        volume = values.astype(np.float32)
    if not np.isfinite(volume).all():
        raise ImageError(f"{path}: it holds NaN or infinite values")
    return volume


def read_labels(path: Path) -> np.ndarray:
    """Read the values [depth, height, width] of labels, int64.

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
    """Read a file's values, [depth, height, width] or with channels last.

    Raises:
        ImageError: it can't be read.
    """
    with reading(path, "a volume"):
        return format_in(VOLUMES, path).read(path, "raw")


def voxels(path: Path) -> int:
    """Return how many values a volume has by its header, or 0 where the header can't be read."""
    try:
        with reading(path, "a volume"):
            return math.prod(format_in(VOLUMES, path).shape(path))
    except ImageError:
        return 0


def values_in_volumes(path: str | None) -> int:
    """Return the number of values in a folder's volumes, by their headers.

    Raises:
        ImageError: as `volume_files`.
    """
    return sum(map(voxels, volume_files(path)[0]))
