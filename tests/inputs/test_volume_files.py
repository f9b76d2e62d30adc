"""Volumes as their files hold them: NIfTI of both versions, either order of bytes, arrays and pages; and wrong ones."""

import gzip
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import tifffile

from pipeline.errors import ImageError
from pipeline.inputs.folders import folder_samples, values_in_file
from pipeline.inputs.image_files import read_image, read_label
from pipeline.inputs.input_contract import Axes, InputContract, LabelRules

read_volume = partial(read_image, volumes=True)
SHAPE = (2, 3, 4)  # depth, height, width
VALUES = np.arange(24, dtype=np.int16).reshape(SHAPE)
LARGE = np.random.default_rng(0).integers(0, 999, (20, 20, 20), np.int16)
RGB = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])


def read_labels(path: Path, axes: Axes = "zyx") -> np.ndarray:
    return read_label(path, LabelRules(), volumes=True, axes=axes)


def nifti(values: np.ndarray, *, big: bool = False, slope: float = 1.0, shift: float = 0.0, version: int = 1) -> bytes:
    """NIfTI in one file with values as they are stored; several values of a voxel come first."""
    made: Any = nibabel.Nifti1Image if version == 1 else nibabel.Nifti2Image
    header = made.header_class(endianness=">" if big else "<")
    header.set_data_dtype(values.dtype)
    image = made(values.T, None, header)
    content = bytearray(image.to_bytes())
    at, figures = (112, "2f") if version == 1 else (176, "2d")
    struct.pack_into((">" if big else "<") + figures, content, at, slope, shift)
    return bytes(content)


def placed(affine: np.ndarray | None, code: str = "sform") -> bytes:
    image = nibabel.Nifti1Image((VALUES % 2).T, None)
    if affine is not None:
        getattr(image.header, f"set_{code}")(affine, 1)
    return nibabel.Nifti1Image(image.dataobj, None, image.header).to_bytes()


STRAIGHT = np.array([[0.7, 0, 0, -10], [0, 0.8, 0, 20], [0, 0, 5, -300], [0, 0, 0, 1]])
MIRRORED, HALF_TURN = STRAIGHT @ np.diag([-1, 1, 1, 1]), STRAIGHT @ np.diag([-1, -1, 1, 1])


@pytest.mark.parametrize(
    ("labels", "millimetres"),
    [
        (placed(STRAIGHT), ""),
        (placed(STRAIGHT + 0.001 * np.eye(4, k=1)), ""),
        (placed(None), ""),
        (placed(STRAIGHT, "qform"), ""),
        (placed(MIRRORED), "4.2"),
        (placed(STRAIGHT @ np.diag([1, 1, 0.8, 1])), "1"),
        (placed(HALF_TURN, "qform"), "5.28"),
    ],
)
def test_labels_that_lie_elsewhere_are_refused(tmp_path: Path, labels: bytes, millimetres: str) -> None:
    for folder in ("scans", "labels"):
        (tmp_path / folder).mkdir()
    written(tmp_path / "scans" / "a.nii", placed(STRAIGHT))
    written(tmp_path / "labels" / "a.nii", labels)
    asked = (str(tmp_path / "scans"), str(tmp_path / "labels"), InputContract(channels=1, scale=1.0), LabelRules("*"))
    if not millimetres:
        assert folder_samples(*asked, volumes=True)[0][0].label is not None
        return
    with pytest.raises(ImageError, match=rf"labels/a\.nii: .* a corner {millimetres} from that of a\.nii, "):
        folder_samples(*asked, volumes=True)


def test_channels_that_lie_elsewhere_are_refused_and_mixed_orientations_told(tmp_path: Path) -> None:
    for name, affine in (("a_0000.nii", STRAIGHT), ("a_0001.nii", MIRRORED)):
        written(tmp_path / name, placed(affine))
    with pytest.raises(ImageError, match=r"a_0001\.nii: its header places a corner 4\.2 from that of a_0000\.nii"):
        folder_samples(str(tmp_path), None, InputContract(2, scale=1.0), LabelRules(), volumes=True)
    _, told = folder_samples(str(tmp_path), None, InputContract(1, scale=1.0), LabelRules(), volumes=True)
    assert told == ["a_0000.nii: stored with axes to RAS; a_0001.nii: stored with axes to LAS"]


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_nifti_gives_depth_height_width(tmp_path: Path) -> None:
    """As they are stored, packed or not, in either order of bytes, scaled as the header says."""
    plain = read_volume(written(tmp_path / "a.nii", nifti(VALUES)), 1)
    assert plain.dtype == np.float32
    assert np.array_equal(plain[..., 0], VALUES)
    other = written(tmp_path / "b.nii.gz", gzip.compress(nifti(VALUES, big=True)))
    assert np.array_equal(read_volume(other, 1), plain)
    assert values_in_file(other, volumes=True) == 24
    scaled = written(tmp_path / "c.nii", nifti(VALUES, slope=2.0, shift=-5.0))
    assert np.array_equal(read_volume(scaled, 1), 2 * plain - 5)
    second = written(tmp_path / "d.nii", nifti(VALUES, slope=2.0, shift=1.0, version=2))
    assert np.array_equal(read_volume(second, 1), 2 * plain + 1)


def test_channels_come_last(tmp_path: Path) -> None:
    both = np.stack([VALUES, VALUES + 100])
    found = read_volume(written(tmp_path / "a.nii", nifti(both)), 2)
    assert np.array_equal(found, np.moveaxis(both, 0, -1))
    np.save(tmp_path / "b.npy", np.moveaxis(both, 0, -1))
    assert np.array_equal(read_volume(tmp_path / "b.npy", 2), found)
    np.save(tmp_path / "c.npy", both)
    with pytest.raises(ImageError, match=r"4 channels, data\.channels=2; channels come first in \[2, 2, 3, 4\]"):
        read_volume(tmp_path / "c.npy", 2)


def test_pages_of_a_tiff_are_planes(tmp_path: Path) -> None:
    """Turned round where 0 is white, as an image is."""
    pages = VALUES.astype(np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", pages, photometric="minisblack")
    assert np.array_equal(read_volume(tmp_path / "a.tif", 1)[..., 0], VALUES)
    assert values_in_file(tmp_path / "a.tif", volumes=True) == 24
    tifffile.imwrite(tmp_path / "w.tif", pages, photometric="miniswhite")
    assert np.array_equal(read_volume(tmp_path / "w.tif", 1)[..., 0], 65535.0 - pages)


def test_what_imagej_says_of_its_pages_counts(tmp_path: Path) -> None:
    """A page for each channel of each plane; frames as planes; volumes at several times are no channels."""
    planes = VALUES.astype(np.uint16)
    both, frames, times = (tmp_path / name for name in ("both.tif", "frames.tif", "times.tif"))
    tifffile.imwrite(both, np.stack([planes, planes + 1], 1), imagej=True, metadata={"axes": "ZCYX"})
    assert np.array_equal(read_volume(both, 2), np.stack([planes, planes + 1], -1))
    tifffile.imwrite(frames, planes, imagej=True, metadata={"axes": "TYX"})
    assert np.array_equal(read_volume(frames, 1)[..., 0], planes)
    tifffile.imwrite(times, np.stack([planes, planes]), imagej=True, metadata={"axes": "TZYX"})
    with pytest.raises(ImageError, match=r"volumes at several times \(axes TZYX\)"):
        read_volume(times, planes.shape[-1])


def test_several_series_of_pages_are_no_volume(tmp_path: Path) -> None:
    with tifffile.TiffWriter(path := tmp_path / "a.tif") as file:
        file.write(np.zeros((4, 8, 8), np.uint8), photometric="minisblack")
        file.write(np.zeros((2, 6, 8), np.uint8), photometric="minisblack")
    with pytest.raises(ImageError, match=r"2 series of pages \(4×8×8, 2×6×8\); save each as a volume of its own"):
        read_volume(path, 1)


BROKEN: dict[str, tuple[Callable[[], bytes], str]] = {
    "flipped.gz": (lambda: gzip.compress(nifti(LARGE))[:-8] + bytes(8), "can be read (BadGzipFile: CRC check failed"),
    "cut off.gz": (lambda: gzip.compress(nifti(VALUES))[:-20], "not a volume that can be read ("),
    "not packed.gz": (lambda: nifti(VALUES), "not a volume that can be read (ImageFileError"),
    "torn": (lambda: nifti(VALUES)[:-3], "not a volume that can be read (OSError: Expected 48 bytes, got 45 bytes"),
    "no header": (lambda: b"\0" * 400, "not a volume that can be read (ImageFileError"),
    "empty": (lambda: b"", "an empty file"),
    "colours": (lambda: nifti(np.zeros(SHAPE, RGB)), "integers and floating point are read"),
    "axes": (lambda: nifti(VALUES[0]), "axes [4, 3]; a volume has three, and a fourth with channels"),
    "vectors": (lambda: nifti(np.zeros((2, 3, *SHAPE), np.int16)), "a volume has three, and a fourth with channels"),
    "pointer": (lambda: b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS instead of the file"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_named(kind: str, tmp_path: Path) -> None:
    make, said = BROKEN[kind]
    path = written(tmp_path / f"scan.nii{Path(kind).suffix}", make())
    with pytest.raises(ImageError) as caught:
        read_volume(path, 1)
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_tiff_that_announces_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    path, tall = tmp_path / "a.tif", struct.pack("<2HII", 257, 4, 1, 2**31 - 2)  # the tag of a page's height
    tifffile.imwrite(path, np.zeros((64, 64), np.uint8), rowsperstrip=1)
    content = path.read_bytes()
    at = content.index(struct.pack("<2HI", 257, 4, 1))
    path.write_bytes(content[:at] + tall + content[at + len(tall) :])
    with pytest.raises(ImageError, match=r"a\.tif: ends before its last value"):
        read_volume(path, 1)


def test_a_folder_is_read_whole(tmp_path: Path) -> None:
    """With labels of each volume's name, or nnU-Net's, whatever their suffix; strangers and missing ones are named."""
    scans, masks = tmp_path / "scans", tmp_path / "masks"
    for folder in (scans, masks, tmp_path / "slices"):
        folder.mkdir()
    written(tmp_path / "slices" / "a.png", b"")
    np.save(scans / "one.npy", VALUES.astype(np.float32))
    written(scans / "two.nii.gz", gzip.compress(nifti(VALUES)))
    np.save(masks / "one.npy", (VALUES > 5).astype(np.uint8))
    rules, contract = LabelRules(pattern="*"), InputContract(1, "unit", (0.0,), (1.0,), 1.0)
    with pytest.raises(ImageError, match=r"two\.nii: no such labels, nor with \.nii\.gz or \.npy"):
        folder_samples(str(scans), str(masks), contract, rules, volumes=True)
    (scans / "two.nii.gz").rename(scans / "two_0000.nii.gz")
    written(masks / "two.nii", nifti((VALUES > 5).astype(np.int16)))
    found, left_out = folder_samples(str(scans), str(masks), contract, rules, volumes=True)
    assert [part.source for part in found] == ["one.npy", "two_0000.nii.gz"]
    assert int(found[0].label.sum()) == 18
    assert left_out == []
    with pytest.raises(ImageError, match=r"no volume in it among 1 file; .* are read; data=folder reads those"):
        folder_samples(str(tmp_path / "slices"), None, contract, rules, volumes=True)
    written(scans / "notes.txt", b"")
    with pytest.raises(ImageError, match=r"notes\.txt: not a volume; a folder of volumes holds \.nii"):
        folder_samples(str(scans), None, contract, rules, volumes=True)


def test_a_value_that_is_none_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full(SHAPE, np.nan, np.float32))
    with pytest.raises(ImageError, match="it holds NaN or infinite values"):
        read_volume(tmp_path / "a.npy", 1)
    np.save(tmp_path / "b.npy", np.zeros((2, 2)))
    with pytest.raises(
        ImageError, match=r"an array of shape \[2, 2\]; \[depth, height, width\] or \[depth, height, width, channels\]"
    ):
        read_volume(tmp_path / "b.npy", 1)


@pytest.mark.parametrize(("name", "package"), [("a.nii", "nibabel"), ("a.zarr", "zarr")])
def test_a_missing_package_is_named(tmp_path: Path, name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImageError, match=rf"{name}: reading it needs {package}; python -m pip install {package}"):
        read_volume(tmp_path / name, 1)
