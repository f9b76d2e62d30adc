"""Volumes as their files hold them, and labels by kind: their classes, and what is refused with its file."""

import gzip
import re
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
from PIL import Image

from pipeline.errors import ImageError
from pipeline.inputs.folders import Sample, folder_samples, label_file, values_in_file
from pipeline.inputs.formats import ORIENTATION
from pipeline.inputs.image_files import as_classes, read_image, read_label
from pipeline.inputs.input_contract import Axes, InputContract, LabelRules
from tests.inputs.png_bytes import png_of_few_bits

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
    scaled = nifti(VALUES, slope=2.0, shift=-5.0)
    assert np.array_equal(read_volume(written(tmp_path / "c.nii", scaled), 1), 2 * plain - 5)
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
    """Turned round where 0 is white, as an image is; one page in colours is a plane."""
    pages = VALUES.astype(np.uint16)
    tifffile.imwrite(tmp_path / "c.tif", np.zeros((5, 4, 3), np.uint8), photometric="rgb")
    assert read_volume(tmp_path / "c.tif", 3).shape == (1, 5, 4, 3)
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
    tifffile.imwrite(both, planes, imagej=True, metadata={"axes": "CYX"})
    assert np.array_equal(read_volume(both, len(planes)), np.moveaxis(planes, 0, -1)[None])
    tifffile.imwrite(both, np.stack([planes] * 3, -1), photometric="rgb", metadata={"axes": "CYXS"})
    with pytest.raises(ImageError, match=r"several channels in colours \(axes CYXS\); save each channel as grey"):
        read_volume(both, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_planes_of_a_tiff_are_upright(orientation: int, tmp_path: Path) -> None:
    """As each page would be if it were an image."""
    pages = VALUES.astype(np.uint16)
    whole, *single = (tmp_path / f"{at}.tif" for at in range(len(pages) + 1))
    for path, part in zip((whole, *single), (pages, *pages), strict=True):
        tags = [(ORIENTATION, "H", 1, orientation, True)]
        tifffile.imwrite(path, part, photometric="minisblack", metadata=None, extratags=tags)
    expected = np.stack([read_image(path, 1) for path in single])
    assert np.array_equal(read_volume(whole, 1), expected)


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
    with pytest.raises(ImageError, match=r"an array of shape \[2, 2\]; \[depth, height, width\] or \[depth, height, "):
        read_volume(tmp_path / "b.npy", 1)


@pytest.mark.parametrize(("name", "package"), [("a.nii", "nibabel"), ("a.zarr", "zarr")])
def test_a_missing_package_is_named(tmp_path: Path, name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImageError, match=rf"{name}: reading it needs {package}; python -m pip install {package}"):
        read_volume(tmp_path / name, 1)


INDICES = LabelRules()
FILES = [Path("masks/a.png"), Path("masks/b.png")]
BLACK_AND_WHITE = np.repeat(np.random.default_rng(0).integers(0, 2, (16, 16, 1), np.uint8) * 255, 3, axis=2)


def labels(*rows: list[int]) -> list[np.ndarray]:
    return [np.array([row]) for row in rows]


@pytest.mark.parametrize(
    ("values", "rules", "classes"),
    [
        (([0, 1, 2], [255, 0, 0]), INDICES, ([0, 1, 2], [255, 0, 0])),
        (([0, 255], [0, 0]), INDICES, ([0, 1], [0, 0])),  # black and white
        (([0, 1], [255, 0]), INDICES, ([0, 1], [255, 0])),
        (([0, 7], [255, 0]), LabelRules(positive=7), ([0, 1], [255, 0])),
        (([0, 128], [255, 0]), LabelRules(positive=255, ignore=None), ([0, 0], [1, 0])),
        (([0, 300], [1, 0]), LabelRules(ignore=300), ([0, 255], [1, 0])),
        (([0, 65535], [0, 0]), LabelRules(positive=65535), ([0, 1], [0, 0])),
    ],
)
def test_values_become_classes(values: list[list[int]], rules: LabelRules, classes: list[list[int]]) -> None:
    """By a rule over all files together, so that one empty mask changes nothing."""
    found = as_classes(labels(*values), FILES, rules)
    assert [part.tolist() for part in found] == [[row] for row in classes]
    assert {part.dtype for part in found} == {np.dtype(np.uint8)}


@pytest.mark.parametrize(
    ("values", "rules", "said"),
    [
        (([0, 1], [0, 300]), INDICES, "masks/b.png: labels 300; classes from 0 to 254 are judged"),
        (([0, 1], [0, -1]), INDICES, "masks/b.png: labels -1; classes from 0 to 254 are judged; data.positive"),
        (([0, 1], [0, 255]), LabelRules(ignore=None), "masks/b.png: labels 255"),
        (([255, 255], [255, 255]), INDICES, "masks: every pixel of labels is 255"),
        (([0, 1], [2, 3]), LabelRules(positive=255), "data.positive=255: no label has this value; they have 0, 1, 2,"),
    ],
)
def test_values_that_are_no_classes_are_refused(values: list[list[int]], rules: LabelRules, said: str) -> None:
    with pytest.raises(ImageError, match=re.escape(said)):
        as_classes(labels(*values), FILES, rules)


def test_each_kind_of_file_is_read_as_it_is(tmp_path: Path) -> None:
    """Indices of a palette, also turned; 16, 4, 2 bits and 1; .npy, and grey that was saved as colour."""
    indices = np.array([[0, 1], [2, 3]], np.uint8)
    palette = Image.fromarray(indices, mode="P")
    palette.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200, 9, 9, 9])
    palette.save(tmp_path / "palette.png")
    exif = palette.getexif()
    exif[0x0112] = 6  # the orientation: to be turned clockwise
    palette.save(tmp_path / "turned.png", exif=exif)
    deep: dict[str, Any] = {"photometric": "palette", "colormap": np.zeros((3, 65536), np.uint16)}
    tifffile.imwrite(tmp_path / "palette.tif", indices.astype(np.uint16), **deep)
    Image.fromarray(indices.astype(np.uint16) * 100).save(tmp_path / "deep.png")
    Image.fromarray(indices > 1).save(tmp_path / "two.png")
    np.save(tmp_path / "array.npy", indices.astype(np.int64))
    Image.fromarray(np.repeat(indices[..., None], 3, 2)).save(tmp_path / "colour.png")
    for bits in (2, 4):  # which Pillow spreads over 0 to 255
        (tmp_path / f"grey{bits}.png").write_bytes(png_of_few_bits(indices, bits))
    others = {"deep.png": indices.astype(int) * 100, "two.png": indices > 1, "turned.png": np.rot90(indices, -1)}
    assert len(list(tmp_path.iterdir())) == 9
    for path in tmp_path.iterdir():
        assert np.array_equal(read_label(path, INDICES), others.get(path.name, indices)), path.name


@pytest.mark.parametrize(
    ("name", "options"),
    [("a.jpg", {}), ("a.png", {"format": "JPEG"}), ("a.jpg", {"format": "MPO"}), ("a.tif", {"compression": "jpeg"}),
     ("a.webp", {}), ("a.webp", {"exif": b"Exif\0\0"})],
)  # fmt: skip
def test_lossy_labels_are_refused(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    """Of a mask in black and white half of the white would be no 255 any more."""
    Image.fromarray(BLACK_AND_WHITE).save(tmp_path / name, **options)
    with pytest.raises(ImageError, match=r"labels under lossy compression, which changes values; save PNGs, of black"):
        read_label(tmp_path / name, LabelRules(positive=255))


@pytest.mark.parametrize("options", [{}, {"exif": b"Exif\0\0"}])
def test_labels_in_a_lossless_webp_are_read(tmp_path: Path, options: dict[str, Any]) -> None:
    Image.fromarray(BLACK_AND_WHITE).save(tmp_path / "a.webp", lossless=True, **options)
    assert np.array_equal(read_label(tmp_path / "a.webp", LabelRules(positive=255)), BLACK_AND_WHITE[..., 0])


def test_colours_become_the_classes_that_they_are_listed_as(tmp_path: Path) -> None:
    mask = np.array([[[0, 0, 0], [255, 0, 0]]], np.uint8)
    Image.fromarray(mask).save(tmp_path / "a.png")
    listed = LabelRules(colors=((0, 0, 0), (0, 255, 0), (255, 0, 0)))
    assert read_label(tmp_path / "a.png", listed).tolist() == [[0, 2]]
    with pytest.raises(ImageError, match=r"a\.png: labels of 2 colours; data\.colors=\[\[0,0,0\],\[255,0,0\]\], in"):
        read_label(tmp_path / "a.png", INDICES)
    Image.fromarray(np.arange(60, dtype=np.uint8).reshape(4, 5, 3)).save(tmp_path / "photograph.png")
    with pytest.raises(ImageError, match="labels of 20 colours, too many for classes"):
        read_label(tmp_path / "photograph.png", INDICES)
    with pytest.raises(ImageError, match=r"doesn't list: \[255, 0, 0\]"):
        read_label(tmp_path / "a.png", LabelRules(colors=((0, 0, 0), (0, 255, 0))))


@pytest.mark.parametrize(
    ("image", "label", "rules"),
    [
        ("a.jpg", "a_mask.tif", LabelRules("*_mask.tif")),
        ("a_0000.jpg", "a_mask.tif", LabelRules("*_mask.tif")),  # nnU-Net's names
        ("a.jpg", "a.gif", LabelRules("*", image="*")),
        ("a.jpg", "a.PNG", LabelRules()),
        ("a.jpg", "a.TIF", LabelRules("*")),
        ("a\nb.jpg", "a\nb.png", LabelRules()),
        ("image_7.jpg", "mask_7.png", LabelRules("mask_*.png", image="image_*")),
        ("image_7.jpg", "mask_7.bmp", LabelRules("mask_*", image="image_*.jpg")),
        ("x_1_left.png", "1-x-ids.png", LabelRules("1-*-ids*.png", image="*_1_left*")),
    ],
)
def test_a_label_is_named_by_the_pattern(image: str, label: str, rules: LabelRules, tmp_path: Path) -> None:
    (tmp_path / label).touch()
    path = Path("images") / image
    assert label_file(Sample(path.stem, (path,)), tmp_path, rules, volumes=False) == tmp_path / label


@pytest.mark.parametrize(
    ("image", "beside", "said"),
    [
        ("a.jpg", "a_mask.tif", r"a\.png \(there is a_mask\.tif\): no such labels; .*data\.label_pattern=\*_mask\.tif"),
        ("image_000.jpg", "mask_000.png", r"\(there is mask_000\.png\): .*data\.label_map=image\*:mask\*\.png names"),
        ("im 17.jpg", "gt (17).png", r"'data\.label_map=im \*:gt \(\*\)\.png' names them so"),
        ("a_0001.png", "a.png", r"a channel of a: each needs as many files as data\.channels says"),
        ("b.jpg", "b.txt", r"b\.png: no such labels; data\.labels holds one file of labels for each image$"),
        ("a.jpg", "xyz.txt", r"a\.png: no such labels; data\.labels holds one file of labels for each image$"),
        ("t_03.png", "t_00.png", r"t_03\.png: no such labels; data\.labels holds one file of labels for each image$"),
    ],
)
def test_a_missing_label_is_told_with_its_option(image: str, beside: str, said: str, tmp_path: Path) -> None:
    (tmp_path / beside).touch()
    path = Path("images") / image
    with pytest.raises(ImageError, match=said):
        label_file(Sample(path.stem, (path,)), tmp_path, INDICES, volumes=False)
    (tmp_path / f"{path.stem}.png").mkdir()
    with pytest.raises(ImageError, match=r"\.png: no regular file"):
        label_file(Sample(path.stem, (path,)), tmp_path, INDICES, volumes=False)


@pytest.mark.parametrize(
    ("names", "rules"),
    [
        (("{}.png", "{}_mask.png"), LabelRules("*_mask.png")),
        (("image_{}.png", "mask_{}.png"), LabelRules("mask_*.png", image="image_*")),
        (("{}.png", "{}_mask.gif"), LabelRules("*_mask", image="*")),
        (("img_{}_rgb.png", "img_{}_gt.png"), LabelRules("*_gt", image="*_rgb")),
    ],
)
def test_images_and_labels_may_share_a_folder(names: tuple[str, str], rules: LabelRules, tmp_path: Path) -> None:
    for number in range(3):
        for name, value in zip(names, (100, 1), strict=True):
            Image.fromarray(np.full((4, 4), value * number, np.uint8)).save(tmp_path / name.format(number))
    found, _ = folder_samples(str(tmp_path), str(tmp_path), InputContract(), rules, volumes=False)
    assert [part.source for part in found] == [names[0].format(number) for number in range(3)]
    assert [int(part.label.max()) for part in found if part.label is not None] == [0, 1, 2]
    with pytest.raises(ImageError, match=r"each would be its own label; set data\.label_pattern=\*_mask"):
        folder_samples(str(tmp_path), str(tmp_path), InputContract(), LabelRules("*", image="*"), volumes=False)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.full((2, 2), 1 + 5j), "labels of type complex128; integers are read"),
        (np.full((2, 2), "a"), "labels of type <U1; integers are read"),
        (np.full((2, 2), np.inf), "labels are no integers"),
        (np.full((2, 2), 0.5), "labels are no integers"),
        (np.zeros((1, 4, 5)), "labels of 5 channels; one is read"),
        (np.full((2, 2), 2**63 + 1, np.uint64), r"labels 9.22337e\+18; classes from 0 to 254"),
    ],
)
def test_values_that_are_no_integers_are_refused(values: np.ndarray, said: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(ImageError, match=said):
        read_label(tmp_path / "a.npy", INDICES)


@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_a_mask_in_the_transparency_is_refused(mode: str, tmp_path: Path) -> None:
    """Read of the colours it would be one class; a transparency that is the same everywhere says nothing."""
    values = np.zeros((2, 3, len(mode)), np.uint8)
    Image.fromarray(values, mode).save(tmp_path / "plain.png")
    assert read_label(tmp_path / "plain.png", INDICES).tolist() == [[0, 0, 0], [0, 0, 0]]
    values[0, :, -1] = 255
    Image.fromarray(values, mode).save(tmp_path / "mask.png")
    with pytest.raises(ImageError, match=r"mask\.png: its transparency varies"):
        read_label(tmp_path / "mask.png", INDICES)
