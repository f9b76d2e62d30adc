"""Volumes of any format as [depth, height, width, channels] in fp32, and their labels (docs/inputs.md)."""

import itertools
from pathlib import Path

import numpy as np

from pipeline.errors import ImageError
from pipeline.inputs.formats import AXES, NIFTI, VOLUMES, format_in, nifti_affine, reading, suffix_in
from pipeline.inputs.image_files import finite
from pipeline.inputs.input_contract import Axes

FARTHEST = 0.5  # of a voxel's shortest side: nearer corners are the same, as headers are rounded


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


def read_volume(path: Path, channels: int, axes: Axes = "zyx", fill: float | None = None) -> np.ndarray:
    """Read a volume [depth, height, width, channels], fp32, scaled as its file says.

    Args:
        path: the file.
        channels: of the network's input.
        axes: order of NIfTI's.
        fill: NaN and infinite values become this; None: they are refused.

    Raises:
        ImageError: it can't be read, has other axes or channels, or holds NaN.
    """
    values = values_of(path, axes)
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
        return finite(path, values.astype(np.float32), fill)


def read_labels(path: Path, axes: Axes = "zyx") -> np.ndarray:
    """Read the values [depth, height, width] of labels, int64.

    Raises:
        ImageError: it can't be read, has other axes, or values that are no integers.
    """
    values = values_of(path, axes)
    values = values[..., 0] if values.ndim == AXES + 1 and values.shape[-1] == 1 else values
    if values.ndim != AXES:
        raise ImageError(f"{path}: labels of shape {list(values.shape)}; [depth, height, width]")
    if values.dtype.kind not in "buif" or not (values == np.floor(values)).all():
        raise ImageError(f"{path}: labels are no integers")
    return values.astype(np.int64)


def values_of(path: Path, axes: Axes = "zyx") -> np.ndarray:
    """Read a file's values, [depth, height, width] or with channels last.

    Raises:
        ImageError: it can't be read.
    """
    with reading(path, "a volume"):
        return turned(format_in(VOLUMES, path).read(path, "raw"), path, axes)


def turned(values: np.ndarray, path: Path, axes: Axes) -> np.ndarray:
    """Return the values of a NIfTI file [z, y, x, …] as [x, y, z, …] if `axes` says so, and back."""
    return np.moveaxis(values, (0, 1, 2), (2, 1, 0)) if axes == "xyz" and suffix_in([NIFTI], path) else values
