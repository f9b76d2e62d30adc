"""Where the voxels of NIfTI files lie, so that labels of another place than their volume's are seen.

Voxels go together by their indices, and no header moves one: where two headers place an index apart, by a mirrored axis
or another spacing, one of the files is of other axes than it seems.
"""

import itertools
import struct
from pathlib import Path

import numpy as np

from pipeline.inputs.nifti import HEADERS, opened, read_header

# By version: letters of codes and of figures, and where pixdim, the two codes, the quaternion with its shift, and the
# rows of the affine begin (https://nifti.nimh.nih.gov, nifti1.h and nifti2.h).
LAYOUTS = {"1": ("h", "f", 76, 252, 256, 280), "2": ("i", "d", 104, 344, 352, 400)}
FARTHEST = 0.5  # of a voxel's shortest side: corners nearer than that are of one place; headers are rounded


def apart(volume: Path, labels: Path) -> float | None:
    """How far apart, in the headers' unit, two files place a corner of the volume; None where that is within rounding.

    None, too, where one of them doesn't say where it lies.

    Raises:
        NiftiError: one can't be read.
    """
    shape, one = affine_of(volume)
    _, other = affine_of(labels)
    if one is None or other is None:
        return None
    corners = np.array([[*corner, 1] for corner in itertools.product(*((0, side - 1) for side in shape))])
    distance = float(np.linalg.norm(corners @ (one - other).T, axis=1).max())
    shortest = float(np.linalg.norm(one[:, :3], axis=0).min())
    return distance if distance > FARTHEST * shortest else None


def affine_of(path: Path) -> tuple[tuple[int, ...], np.ndarray | None]:
    """The voxels along x, y and z, and what turns an index (x, y, z, 1) into a place [3, 4]; None where none is said.

    Raises:
        NiftiError: it can't be read.
    """
    with opened(path) as file:
        shape = read_header(file).shape[:3]
        file.seek(0)
        start = file.read(max(HEADERS))
    order = "<" if struct.unpack_from("<i", start)[0] in HEADERS else ">"
    code, figure, at_sides, at_codes, at_turn, at_rows = LAYOUTS[HEADERS[struct.unpack_from(f"{order}i", start)[0]]]
    by_turn, by_rows = struct.unpack_from(f"{order}2{code}", start, at_codes)
    if by_rows > 0:
        affine = np.reshape(struct.unpack_from(f"{order}12{figure}", start, at_rows), (3, 4))
    elif by_turn > 0:
        sides = struct.unpack_from(f"{order}4{figure}", start, at_sides)
        affine = turned(np.array(sides), np.array(struct.unpack_from(f"{order}6{figure}", start, at_turn)))
    else:
        return shape, None
    return shape, affine if np.isfinite(affine).all() else None


def turned(sides: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """The affine [3, 4] of a quaternion, by nifti1.h's method 2.

    Args:
        sides: whether the third axis is mirrored, −1, and the sides of a voxel.
        turn: the quaternion's b, c and d, and the place of the first voxel.
    """
    b, c, d = turn[:3]
    a = np.sqrt(max(0.0, 1.0 - float(b * b + c * c + d * d)))
    rotation = np.array([
        [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
        [2 * (b * c + a * d), a * a + c * c - b * b - d * d, 2 * (c * d - a * b)],
        [2 * (b * d - a * c), 2 * (c * d + a * b), a * a + d * d - b * b - c * c],
    ])  # fmt: skip
    mirrored = -1.0 if sides[0] < 0 else 1.0
    return np.column_stack([rotation * sides[1:] * [1.0, 1.0, mirrored], turn[3:]])
