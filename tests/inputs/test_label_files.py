"""Labels by kind: which values become which classes, and what is refused with its values and its file."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from pipeline.errors import ImageError
from pipeline.inputs.folders import Sample, folder_samples, label_file
from pipeline.inputs.image_files import as_classes, read_label
from pipeline.inputs.input_contract import InputContract, LabelRules
from tests.inputs.png_bytes import png_of_few_bits

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
        (([255, 255], [255, 255]), INDICES, "masks: every pixel of the labels is 255"),
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
    [
        ("a.jpg", {}),
        ("a.png", {"format": "JPEG"}),
        ("a.jpg", {"format": "MPO"}),
        ("a.tif", {"compression": "jpeg"}),
        ("a.webp", {}),
        ("a.webp", {"exif": b"Exif\0\0"}),
    ],
)
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
