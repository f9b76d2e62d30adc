"""Faults of single files, of the folder of masks, and of the process: each costs itself alone."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile

from pipeline.predict import cases
from tests.predict.made_up_runs import SIZE, Call, Told, write_image

LONG = "a" * 251


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    for name in ("a", "z"):
        write_image(folder / f"{name}.png", SIZE, SIZE)
    return folder


@pytest.fixture
def asked(run: Path, images: Path) -> list[object]:
    return [run, images, "--out", images.parent / "masks", "--stage", "eager"]


def too_many_channels(folder: Path) -> None:
    tifffile.imwrite(folder / "m.tif", np.zeros((4, 4, 3), np.uint16), photometric="rgb")
    content = bytearray((folder / "m.tif").read_bytes())
    with tifffile.TiffFile(folder / "m.tif") as file:
        tags = [(file.pages.first.tags[name].offset, value) for name, value in (("SamplesPerPixel", 65535),)]
    for at, value in tags:
        content[at + 8 : at + 10] = value.to_bytes(2, "little")
    (folder / "m.tif").write_bytes(content)


def huge_array(folder: Path) -> None:
    """Sparse, of 3.6 GB."""
    np.lib.format.open_memmap(folder / "m.npy", "w+", np.uint8, (60000, 60000, 1)).flush()


def without_a_codec(folder: Path) -> None:
    tifffile.imwrite(folder / "m.tif", np.zeros((SIZE, SIZE, 3), np.uint16), photometric="rgb")
    content = (folder / "m.tif").read_bytes()
    known, other = (b"\x03\x01\x03\0\x01\0\0\0" + code.to_bytes(2, "little") for code in (1, 50000))
    (folder / "m.tif").write_bytes(content.replace(known, other))


def gone(folder: Path) -> None:
    (folder / "m.png").symlink_to("nowhere")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (too_many_channels, "no mask of m: "),
        (huge_array, "m.npy: reading it takes 26.82 GiB, and 1 GiB of memory are free"),
        (without_a_codec, "m.tif: reading it needs imagecodecs; python -m pip install imagecodecs"),
        (gone, "m.png: No such file or directory"),
    ],
)
def test_a_file_that_cannot_be_read_costs_its_own_mask(
    spoil: Callable[[Path], None], said: str, asked: list[object], images: Path, monkeypatch: pytest.MonkeyPatch,
    told: Told,
) -> None:  # fmt: skip
    spoil(images)
    monkeypatch.setattr(cases, "free_memory_bytes", lambda: 2**30)
    assert said in told(1, *asked)
    assert sorted(path.name for path in (images.parent / "masks").glob("*.png")) == ["a.png", "z.png"]


def test_a_name_of_255_bytes_has_its_mask_and_keeps_it(asked: list[object], images: Path, call: Call) -> None:
    (images / "a.png").rename(images / f"{LONG}.png")
    assert call(*asked)[0] == 0
    assert (images.parent / "masks" / f"{LONG}.png").is_file()
    assert call(*asked)[1].startswith("0 masks made, 2 were there")


@pytest.mark.parametrize("name", ["predict.json", "a.png", ".masks/0-of-1.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_not_waited_for(name: str, kind: str, asked: list[object], images: Path, told: Told) -> None:
    place = images.parent / "masks" / name
    place.parent.mkdir(parents=True)
    os.mkfifo(place) if kind == "pipe" else place.symlink_to("/dev/zero")
    assert f"{place}: " in told(2, *asked)


def test_a_mask_that_is_another_one_s_overlay_is_not_made(asked: list[object], images: Path, told: Told) -> None:
    write_image(images / "overlays" / "a.png", SIZE, SIZE)
    assert "overlays/a.png: its mask would lie among overlays" in told(1, *asked, "--overlay")


def test_a_mask_beyond_pillows_limit_is_known(asked: list[object], monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    assert call(*asked)[0] == 0
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 4)
    assert call(*asked)[1].startswith("0 masks made, 2 were there")
