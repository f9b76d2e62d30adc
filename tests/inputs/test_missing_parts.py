"""Files that a reader takes for whole although a part of them is missing, or is passed over."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile

from pipeline.errors import ImageError
from pipeline.inputs.image_files import read_image
from pipeline.inputs.input_contract import LabelRules
from pipeline.inputs.label_files import as_classes, read_label

HEIGHT, WIDTH = 13, 19
GREY = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH), np.uint8)
COLOUR = np.dstack([GREY, GREY[::-1], 255 - GREY])
Write = Callable[[Path], object]


def packed_12_bits(path: Path) -> None:
    values = np.full(2 * WIDTH * HEIGHT, 4095, np.uint16)
    first, second = values[::2], values[1::2]
    data = np.stack([first >> 4, ((first & 15) << 4) | (second >> 8), second & 255], -1).astype(np.uint8).tobytes()
    tags = {256: 2 * WIDTH, 257: HEIGHT, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: HEIGHT, 279: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    path.write_bytes(
        b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + bytes(4)
    )


def taller_than_its_strips(path: Path) -> None:
    """A TIFF whose header announces more rows than its one strip has."""
    tifffile.imwrite(path, GREY, rowsperstrip=HEIGHT)
    with tifffile.TiffFile(path) as file:
        at = file.pages.first.tags[257].valueoffset
    content = bytearray(path.read_bytes())
    content[at : at + 2] = struct.pack("<H", HEIGHT + 5)
    path.write_bytes(content)


def planes(**written: object) -> Write:
    """Three planes behind one header, as ImageJ and tifffile write large stacks."""
    return lambda path: tifffile.imwrite(path, np.stack([GREY] * 3), truncate=True, **written)  # type: ignore[arg-type]


def beside(values: np.ndarray, photometric: str) -> Write:
    return lambda path: tifffile.imwrite(
        path, values, photometric=photometric, planarconfig="contig", extrasamples=["unspecified"]
    )


LACKING: dict[str, tuple[Write, str]] = {
    "planes.tif": (planes(photometric="minisblack"), "3 pages or planes"),
    "imagej.tif": (planes(imagej=True), "3 pages or planes"),
    "palette.tif": (planes(photometric="palette", colormap=np.zeros((3, 256), np.uint16)), "3 pages or planes"),
    "strips.tif": (taller_than_its_strips, "ends before its last value"),
    "bits.tif": (packed_12_bits, "values of 12 bits; save them in 16 bits and set data.scale=4095"),
    "infrared.tif": (
        beside(np.dstack([COLOUR, GREY]), "rgb"),
        "4 channels, data.channels=3; data.channels=4 takes them all, or save RGB alone",
    ),
    "dyes.tif": (beside(np.dstack([GREY, GREY]), "minisblack"), "2 channels, data.channels=3"),
}
AS_LABELS = [name for name in LACKING if name not in ("infrared.tif", "dyes.tif")]


@pytest.mark.parametrize("name", LACKING)
def test_a_picture_that_lacks_a_part_is_refused(name: str, tmp_path: Path) -> None:
    """Where Pillow fills in zeros, or gives the first plane, or the first channels."""
    write, said = LACKING[name]
    write(path := tmp_path / name)
    with pytest.raises(ImageError) as caught:
        read_image(path)
    assert str(caught.value).startswith(f"{path}: {said}")


@pytest.mark.parametrize("name", AS_LABELS)
def test_so_are_labels(name: str, tmp_path: Path) -> None:
    write, said = LACKING[name]
    write(path := tmp_path / name)
    with pytest.raises(ImageError, match=said):
        read_label(path, LabelRules())


@pytest.mark.parametrize("layout", ["contig", "separate"])
def test_infrared_is_read_where_four_channels_are_asked_for(layout: str, tmp_path: Path) -> None:
    four = np.dstack([COLOUR, GREY[..., None]]).astype(np.uint8)
    stored = four if layout == "contig" else np.moveaxis(four, -1, 0)
    tifffile.imwrite(
        path := tmp_path / "a.tif", stored, photometric="rgb", planarconfig=layout, extrasamples=["unspecified"]
    )
    assert np.array_equal(read_image(path, 4), four)


def test_values_that_are_no_classes_name_what_gives_them_a_meaning(tmp_path: Path) -> None:
    np.save(path := tmp_path / "a.npy", np.array([[0, 1], [-1, 1]]))
    values = read_label(path, LabelRules())
    with pytest.raises(ImageError, match=r"labels -1; .*data.positive and data.ignore say"):
        as_classes([values], [path], LabelRules())
    assert as_classes([values], [path], LabelRules(ignore=-1))[0].tolist() == [[0, 1], [255, 1]]
