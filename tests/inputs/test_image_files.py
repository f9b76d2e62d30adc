"""Files of images by kind: what they become, and which are refused by name."""

import io
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageOps

from pipeline.errors import ImageError
from pipeline.inputs.folders import values_in_file
from pipeline.inputs.image_files import alike, each, read_image, read_label, read_values
from pipeline.inputs.input_contract import LabelRules
from tests.inputs.png_bytes import png_of_48_bits

COLOUR = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)
GREY = COLOUR[..., 0]
DEEP = GREY.astype(np.uint16) * 257


def saved(folder: Path, name: str, array: np.ndarray, mode: str = "", **how: object) -> Path:
    image = Image.fromarray(array)
    (image.convert(mode) if mode else image).save(folder / name, **how)  # type: ignore[arg-type]
    return folder / name


def test_colour_and_grey_are_read_as_they_are(tmp_path: Path) -> None:
    colour = saved(tmp_path, "c.png", COLOUR)
    assert np.array_equal(read_image(colour), COLOUR)
    with pytest.raises(ImageError, match=r"3 channels, data\.channels=1; colour is not turned into grey unasked"):
        read_image(colour, 1)
    grey = saved(tmp_path, "g.png", GREY)
    assert np.array_equal(read_image(grey), np.repeat(GREY[..., None], 3, 2))
    assert np.array_equal(read_image(grey, 1), GREY[..., None])
    assert np.array_equal(read_image(saved(tmp_path, "e.png", np.dstack([GREY] * 3)), 1), GREY[..., None])


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_a_photograph_is_read_bit_for_bit(suffix: str, tmp_path: Path) -> None:
    """As Pillow decodes it; torch takes the array without a copy."""
    path = saved(tmp_path, f"a.{suffix}", np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8))
    found = read_image(path)
    assert np.array_equal(found, np.asarray(Image.open(path).convert("RGB")))
    assert found.flags.writeable


@pytest.mark.parametrize("mode", ["RGBA", "P", "CMYK", "LA", "1"])
def test_other_modes_become_eight_bits(mode: str, tmp_path: Path) -> None:
    """Transparency is dropped, a palette's colours are taken, CMYK is converted, two values become 0 and 255."""
    found = read_image(saved(tmp_path, "a.tif" if mode == "CMYK" else "a.png", COLOUR, mode))
    assert (found.shape, found.dtype) == ((4, 6, 3), np.uint8)
    if mode in ("RGBA", "CMYK"):
        assert np.abs(found.astype(int) - COLOUR).max() <= 1
    if mode == "1":
        assert set(np.unique(found)) <= {0, 255}


def test_the_orientation_of_a_camera_is_applied(tmp_path: Path) -> None:
    """EXIF 6: the picture was taken with the camera turned."""
    exif = Image.Exif()
    exif[0x0112] = 6
    assert np.array_equal(read_image(saved(tmp_path, "a.png", COLOUR, exif=exif)), np.rot90(COLOUR, -1))


@pytest.mark.parametrize("kind", ["png", "tif", "big.tif", "npy", "rgb.tif", "planes.tif"])
def test_sixteen_bits_stay_sixteen(kind: str, tmp_path: Path) -> None:
    path, colour = tmp_path / f"a.{kind}", COLOUR.astype(np.uint16) * 257
    writers: dict[str, Callable[[], object]] = {
        "png": lambda: saved(tmp_path, path.name, DEEP),
        "tif": lambda: saved(tmp_path, path.name, DEEP),
        "big.tif": lambda: tifffile.imwrite(path, DEEP, byteorder=">"),
        "npy": lambda: np.save(path, DEEP.astype(">u2")),
        "rgb.tif": lambda: tifffile.imwrite(path, colour, photometric="rgb"),
        "planes.tif": lambda: tifffile.imwrite(path, np.moveaxis(colour, -1, 0), photometric="rgb"),
    }
    writers[kind]()
    found = read_image(path)
    assert found.dtype == np.uint16
    expected = colour if kind in ("rgb.tif", "planes.tif") else np.repeat(DEEP[..., None], 3, 2)
    assert np.array_equal(found, expected)


def test_other_numbers_of_channels_come_from_arrays_and_tiffs(tmp_path: Path) -> None:
    four = np.dstack([COLOUR, GREY])
    np.save(tmp_path / "a.npy", four.astype(np.float64) / 255)
    tifffile.imwrite(tmp_path / "a.tif", four, photometric="rgb", extrasamples=["unassalpha"])
    infrared: dict[str, Any] = {"photometric": "rgb", "extrasamples": ["unspecified"]}
    tifffile.imwrite(tmp_path / "contig.tif", four, **infrared)
    tifffile.imwrite(tmp_path / "planes.tif", np.moveaxis(four, -1, 0), planarconfig="separate", **infrared)
    assert np.allclose(read_image(tmp_path / "a.npy", 4), four / 255)
    for name in ("a.tif", "contig.tif", "planes.tif"):
        assert np.array_equal(read_image(tmp_path / name, 4), four)
    assert np.array_equal(read_image(tmp_path / "a.tif", 3), COLOUR)
    assert np.array_equal(read_image(saved(tmp_path, "a.png", four), 4), four)


Write = Callable[[Path], object]
HEIGHT, WIDTH = 13, 19
LARGER = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH), np.uint8)
LARGER_COLOUR = np.dstack([LARGER, LARGER[::-1], 255 - LARGER])
FRAMES = io.BytesIO()
Image.fromarray(COLOUR).save(FRAMES, "PNG", save_all=True, append_images=[Image.fromarray(COLOUR[::-1])])


def packed_12_bits(path: Path) -> None:
    values = np.full(2 * WIDTH * HEIGHT, 4095, np.uint16)
    first, second = values[::2], values[1::2]
    data = np.stack([first >> 4, ((first & 15) << 4) | (second >> 8), second & 255], -1).astype(np.uint8).tobytes()
    tags = {256: 2 * WIDTH, 257: HEIGHT, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: HEIGHT, 279: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    header = b"II*\0" + struct.pack("<I", 8 + len(data))
    path.write_bytes(header + data + struct.pack("<H", len(tags)) + entries + bytes(4))


def taller_than_its_strips(path: Path) -> None:
    tifffile.imwrite(path, LARGER, rowsperstrip=HEIGHT)
    with tifffile.TiffFile(path) as file:
        at = file.pages.first.tags[257].valueoffset
    content = bytearray(path.read_bytes())
    content[at : at + 2] = struct.pack("<H", HEIGHT + 5)
    path.write_bytes(content)


def tiff(values: np.ndarray, **how: Any) -> Write:
    return lambda path: tifffile.imwrite(path, values, **how)


def planes(**how: Any) -> Write:
    """Three planes behind one header, as ImageJ and tifffile write large stacks."""
    return tiff(np.stack([LARGER] * 3), truncate=True, **how)


def beside(values: np.ndarray, photometric: str) -> Write:
    return tiff(values, photometric=photometric, planarconfig="contig", extrasamples=["unspecified"])


def compressed_by(code: int, kind: type[np.generic]) -> Write:
    """A TIFF whose header names another compression than it has."""

    def write(path: Path) -> None:
        tifffile.imwrite(path, COLOUR.astype(kind))
        known, other = (struct.pack("<2HIH", 259, 3, 1, number) for number in (1, code))
        path.write_bytes(path.read_bytes().replace(known, other))

    return write


def array(values: object) -> Write:
    return lambda path: np.save(path, values, allow_pickle=True)  # type: ignore[arg-type]


def called(kind: str) -> Write:
    """An image of another kind than its name's."""
    return lambda path: Image.fromarray(np.resize(COLOUR, (16, 16, 3))).save(path, kind)


def torn(path: Path) -> None:
    path.write_bytes(saved(path.parent, "whole.png", COLOUR).read_bytes()[:-30])


NO_IMAGE, NEEDS_CODECS = "not an image that can be read", "needs imagecodecs; python -m pip install imagecodecs"
REFUSED: dict[str, tuple[Write, str]] = {
    "volume.npy": (array(np.zeros((2, 3, 4, 5))), "an array of shape [2, 3, 4, 5]"),
    "empty.npy": (array(np.zeros((0, 3))), "an array of shape [0, 3]"),
    "five.npy": (array(np.zeros((4, 6, 5))), "5 channels, data.channels=3"),
    "first.npy": (array(np.zeros((3, 4, 6))), "data.channels=3; channels come first in [3, 4, 6], and are read last"),
    "nan.npy": (array(np.full((4, 6), np.nan)), "NaN or infinite"),
    "integers.npy": (array(np.full((4, 6), 2**24 + 2)), "int64 beyond 16,777,216, of which fp32 has not each; save"),
    "complex.npy": (array(np.full((4, 6), 1j)), "values of type complex128"),
    "objects.npy": (array(np.array([{}], object)), f"{NO_IMAGE} (ValueError: Array can't be memory-mapped: "),
    "broken.png": (torn, f"{NO_IMAGE} (OSError: "),
    "pointer.png": (lambda path: path.write_bytes(b"version https://git-lfs.github.com/"), "a pointer of Git LFS inst"),
    "text.png": (lambda path: path.write_bytes(b"no picture"), NO_IMAGE),
    "cut.png": (lambda path: path.write_bytes(FRAMES.getvalue()[:60]), NO_IMAGE),
    "frames.png": (lambda path: path.write_bytes(FRAMES.getvalue()), "2 pages or frames"),
    "deep.png": (lambda path: path.write_bytes(png_of_48_bits(COLOUR.astype(">u2"))), "a PNG of several channels of "),
    "ico.png": (called("ico"), NO_IMAGE),  # Pillow looks at the contents alone
    "eps.png": (called("eps"), NO_IMAGE),  # and gives PostScript to a program outside
    "lab.tif": (lambda path: saved(path.parent, path.name, COLOUR, "LAB"), "an image of mode LAB"),
    "zstd.tif": (compressed_by(50000, np.uint16), NEEDS_CODECS),
    "lerc.tif": (compressed_by(34887, np.uint8), NEEDS_CODECS),
    "pages.tif": (tiff(np.zeros((3, 4, 6), np.uint8), photometric="minisblack"), "3 pages or planes"),
    "deep_pages.tif": (tiff(np.zeros((3, 4, 6, 3), np.uint16), photometric="rgb"), "3 pages"),
    "planes.tif": (planes(photometric="minisblack"), "3 pages or planes"),
    "imagej.tif": (planes(imagej=True), "3 pages or planes"),
    "palette.tif": (planes(photometric="palette", colormap=np.zeros((3, 256), np.uint16)), "3 pages or planes"),
    "strips.tif": (taller_than_its_strips, "ends before its last value"),
    "bits.tif": (packed_12_bits, "values of 12 bits; save them in 16 bits and set data.scale=4095"),
    "infrared.tif": (beside(np.dstack([LARGER_COLOUR, LARGER]), "rgb"), "channels=3; data.channels=4 takes them all"),
    "dyes.tif": (beside(np.dstack([LARGER, LARGER]), "minisblack"), "2 channels, data.channels=3"),
}
LABELS_TOO = ("planes.tif", "imagej.tif", "palette.tif", "strips.tif", "bits.tif")  # where Pillow gives a part


@pytest.mark.parametrize("name", REFUSED)
def test_odd_forms_are_refused_by_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_: pytest.fail("Ghostscript was called"))
    write, said = REFUSED[name]
    write(path := tmp_path / name)
    readers = [read_image, lambda file: read_label(file, LabelRules())] if name in LABELS_TOO else [read_image]
    for read in readers:
        with pytest.raises(ImageError) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("meaning", "shape", "kind"),
    [
        ("palette", (4, 6), np.uint16), ("cielab", (4, 6, 3), np.uint16), ("ycbcr", (4, 6, 3), np.uint16),
        ("separated", (4, 6, 4), np.uint16), ("cfa", (4, 6), np.uint8), ("mask", (4, 6), np.uint8),
        ("linear_raw", (4, 6, 3), np.uint16),
    ],
)  # fmt: skip
def test_odd_colours_are_refused(meaning: str, shape: tuple[int, ...], kind: type[np.generic], tmp_path: Path) -> None:
    """Where Pillow doesn't convert it: its numbers look like grey or RGB, and are neither."""
    palette: dict[str, Any] = {"colormap": np.zeros((3, 65536), np.uint16)} if meaning == "palette" else {}
    tifffile.imwrite(tmp_path / "a.tif", np.ones(shape, kind), photometric=meaning, planarconfig="contig", **palette)
    with pytest.raises(ImageError, match=f"a TIFF whose values mean {meaning.upper()}; save it as grey or RGB"):
        read_image(tmp_path / "a.tif", shape[2] if shape[2:] == (3,) else 3)
    if shape[2:] == (4,):
        assert read_image(tmp_path / "a.tif", 4).shape == shape  # raw, as data.channels=4 asks


@pytest.mark.parametrize("shape", ["(-1, 4, 3)", f"({2**63 - 1}, 3)", f"({10**30}, 3)"])
@pytest.mark.parametrize("read", [read_image, lambda path: read_image(path, 1, volumes=True)], ids=["image", "volume"])
def test_an_array_s_header_that_is_none_is_told(
    read: Callable[[Path], object], shape: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """Whatever numpy raises, which reads it as Python: of size, depth or grammar; and it warns of nothing."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(99))
    with pytest.raises(ImageError, match=r"a\.npy: not an? \w+ that can be read \(\w+"):
        read(tmp_path / "a.npy")
    assert values_in_file(tmp_path / "a.npy", volumes=False) == 0
    assert not recwarn.list


def test_every_bad_file_is_named_at_once(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.png" for number in range(8)]
    for file in files[1:]:
        file.write_text("no picture")
    saved(tmp_path, "0.png", COLOUR)
    with pytest.raises(ImageError) as caught:
        each(files, read_image)
    assert [f"{number}.png" in str(caught.value) for number in range(8)] == [False, *[True] * 5, False, False]
    assert str(caught.value).endswith("5.png and 2 more: not an image that can be read (UnidentifiedImageError)")
    files[0] = saved(tmp_path, "0.png", COLOUR).rename(tmp_path / "grey.png")
    with pytest.raises(ImageError) as caught:
        each(files, lambda file: read_image(file, 1))
    assert str(caught.value).endswith("UnidentifiedImageError); and 1 more")


def test_files_of_several_types_mean_the_same() -> None:
    eight, sixteen = np.array([[[0], [255]]], np.uint8), np.array([[[0], [65535]]], np.uint16)
    share = np.array([[[0], [1]]], np.float32)
    mixed: list[list[np.ndarray]] = [[eight, sixteen], [eight, sixteen, share], [eight, eight]]
    for images in mixed:
        found = alike(images, ["a", "b", "c"][: len(images)], None)
        assert len({image.dtype for image in found}) == 1
        assert all(np.array_equal(image, found[-1]) for image in found)
    assert alike([eight, sixteen], ["a", "b"], None)[0].dtype == np.uint16


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("suffix", ["npy", "tif"])
def test_other_integers_become_fp32_and_need_a_scale(kind: type[np.generic], suffix: str, tmp_path: Path) -> None:
    """Pillow would read -100 of 8 bits as 156."""
    if (kind, suffix) == (np.int64, "tif"):
        return
    values, path = np.full((4, 6), 100, kind), tmp_path / f"a.{suffix}"
    values[0] = 0 if kind == np.uint32 else -100
    np.save(path, values) if suffix == "npy" else tifffile.imwrite(path, values)
    found = read_image(path, 1)
    assert found.dtype == np.float32
    assert np.array_equal(found[..., 0], values)
    with pytest.raises(ImageError, match=r"^a, b: values from -?[0-9]+ to 101; set data\.scale, or save floats"):
        alike([found, found + 1, found / 200 + 0.5], ["a", "b", "c"], None)


@pytest.mark.parametrize(("kind", "none"), [(np.int16, -9999), (np.float32, np.nan), (np.float32, -1e30)])
def test_values_that_mean_no_data_are_filled(kind: type[np.generic], none: float, tmp_path: Path) -> None:
    """Pillow would swap the bytes of these floats twice."""
    values, fill = np.full((4, 6), 7, kind), 0.5 if kind == np.float32 else 0
    values[0, 0] = none
    tags = [] if none != none else [(42113, "s", 0, f"{none:g}", True)]
    tifffile.imwrite(tmp_path / "a.tif", values, extratags=tags, byteorder=">", compression="zlib")
    assert read_image(tmp_path / "a.tif", 1, fill=fill).ravel().tolist() == [fill, *[7] * 23]
    if kind == np.int16:
        with pytest.raises(ImageError, match=r"data\.fill=0\.5 is no int16; give a whole number up to 32767"):
            read_image(tmp_path / "a.tif", 1, fill=0.5)
    if none != none:
        with pytest.raises(ImageError, match=r"NaN or infinite values; data\.fill=0 reads them as 0"):
            read_image(tmp_path / "a.tif", 1)


@pytest.mark.parametrize("value", [1.5, -0.1])
def test_floats_beyond_0_to_1_need_a_scale(value: float) -> None:
    """4095 may be 12 bits, or may be Hounsfield units: nobody guesses."""
    image = np.array([[[0.5], [value]]], np.float32)
    with pytest.raises(ImageError, match=r"^a\.npy: values from .*set data\.scale"):
        alike([image], ["a.npy"], None)
    assert alike([image], ["a.npy"], 2.0)[0] is image
    with pytest.raises(ImageError, match="several types"):
        alike([image, image.astype(np.uint8)], ["a", "b"], 2.0)


@pytest.mark.parametrize("bits", [8, 16])
def test_a_tiff_in_which_0_is_white_is_turned_round(bits: int, tmp_path: Path) -> None:
    """Of 16 bits as of 8, where Pillow does so itself; floats have no black."""
    values = GREY if bits == 8 else DEEP
    tifffile.imwrite(tmp_path / "w.tif", values, photometric="miniswhite")
    assert np.array_equal(read_image(tmp_path / "w.tif", 1)[..., 0], np.iinfo(values.dtype).max - values)
    tifffile.imwrite(tmp_path / "f.tif", values.astype(np.float32), photometric="miniswhite")
    with pytest.raises(ImageError, match="0 is white"):
        read_image(tmp_path / "f.tif", 1)


def test_a_tiff_that_pillow_does_not_open_has_no_more_pixels_than_others(tmp_path: Path) -> None:
    """By its header, before they are unpacked; and they count where a folder's images are added up."""
    path = tmp_path / "five.tif"
    tifffile.imwrite(path, np.zeros((4, 6, 5), np.uint8), photometric="minisblack", planarconfig="contig")
    assert values_in_file(path, volumes=False) == 4 * 6 * 5
    content = bytearray(path.read_bytes())
    with tifffile.TiffFile(path) as file:
        entries = [file.pages.first.tags[name].offset for name in ("ImageWidth", "ImageLength", "RowsPerStrip")]
    for entry in entries:  # tag, type (4: of 32 bits), count, value
        content[entry + 2 : entry + 4], content[entry + 8 : entry + 12] = struct.pack("<H", 4), struct.pack("<I", 60000)
    path.write_bytes(content)
    assert values_in_file(path, volumes=False) == 60000 * 60000 * 5
    with pytest.raises(ImageError, match=r"five\.tif: 3,600,000,000 pixels; at most 178,956,970"):
        read_image(path, 5)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_tiff_is_upright_whoever_reads_it(orientation: int, kind: type[np.generic], tmp_path: Path) -> None:
    """As Pillow turns 8 bits: 16 bits of colour, which it can't read, lay as they were stored beside upright labels."""
    tag = (274, "H", 1, orientation, True)
    for name, values in (("asked.tif", COLOUR.astype(kind)), ("shown.tif", COLOUR)):
        tifffile.imwrite(tmp_path / name, values, photometric="rgb", extratags=[tag])
    with Image.open(tmp_path / "shown.tif") as image:
        shown = np.array(ImageOps.exif_transpose(image))
    assert (read_image(tmp_path / "asked.tif") == shown).all()
    for name, form in (("grey.tif", "minisblack"), ("inverted.tif", "miniswhite")):  # Pillow maps the first
        values = COLOUR[..., 0] if name == "grey.tif" else 255 - COLOUR[..., 0]
        tifffile.imwrite(tmp_path / name, values, photometric=form, extratags=[tag])
        assert (read_image(tmp_path / name, 1)[..., 0] == shown[..., 0]).all()
    assert shown.shape == (COLOUR.shape if orientation < 5 else (COLOUR.shape[1], COLOUR.shape[0], 3))


@pytest.mark.parametrize(
    ("mode", "more", "asked"),
    [
        ("RGB", {}, True),
        ("L", {}, True),
        ("L", {"bits": 2}, False),
        ("P", {}, False),
        ("RGBA", {}, False),
        ("RGB", {"transparency": (1, 2, 3)}, False),
        ("RGB", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"}, False),
    ],
    ids=["colour", "grey", "2 bits", "palette", "alpha", "transparency", "turned"],
)
@pytest.mark.parametrize("fails", [False, True])
def test_only_plain_png_files_are_read_by_libpng(
    mode: str, more: dict[str, Any], asked: bool, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it refuses is left to Pillow."""
    values = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    Image.fromarray(values).convert(mode).save(tmp_path / "a.png", **more)
    expected, calls = read_values(tmp_path / "a.png", "colours"), 0

    def png_decode(content: bytes) -> np.ndarray:
        nonlocal calls
        calls += 1
        if fails:
            raise ValueError
        return np.array(Image.open(io.BytesIO(content)))

    monkeypatch.setitem(sys.modules, "imagecodecs", SimpleNamespace(png_decode=png_decode))
    assert np.array_equal(read_values(tmp_path / "a.png", "colours"), expected)
    assert bool(calls) == asked
