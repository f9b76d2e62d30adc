"""Masks of mixed images, bit for bit those of the stage; faults of files and of the folder cost themselves alone."""

import io
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from models.build import build_model
from models.image_batches import to_batch
from pipeline.inputs.image_files import read_image
from pipeline.predict import cases
from pipeline.predict.command import main
from tests.predict.made_up_runs import OPTIONS, SIZE, Call, Told, held, write_image

SIDES = {"same": (SIZE, SIZE), "small": (7, 11), "large": (41, 29), "long": (5, 50)}


def pixels(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height * width).integers(0, 256, (height, width, 3), np.uint8)


KINDS: dict[str, Callable[[Path, np.ndarray], object]] = {
    "jpeg": lambda path, values: Image.fromarray(values).save(path.with_suffix(".jpg"), quality=90),
    "progressive": lambda path, values: Image.fromarray(values).save(path.with_suffix(".jpeg"), progressive=True),
    "png": lambda path, values: Image.fromarray(values).save(path.with_suffix(".png")),
    "grey16": lambda path, values: Image.fromarray(values[..., 0] * np.uint16(251)).save(path.with_suffix(".png")),
    "rgb16": lambda path, values: tifffile.imwrite(
        path.with_suffix(".tif"), values * np.uint16(257), photometric="rgb"
    ),
    "palette": lambda path, values: Image.fromarray(values).quantize(7).save(path.with_suffix(".png")),
    "turned": lambda path, values: Image.fromarray(values).save(path.with_suffix(".jpg"), exif=held(6)),
    "cmyk": lambda path, values: Image.fromarray(values).convert("CMYK").save(path.with_suffix(".jpg")),
    "alpha": lambda path, values: (
        Image.fromarray(values).convert("RGBA").save(path.with_suffix(".webp"), lossless=True)
    ),
    "float": lambda path, values: np.save(path.with_suffix(".npy"), values.astype(np.float32) / 255),
}


def starts(length: int, overlap: int) -> list[int]:
    """First pixels of the windows along a side, by docs/predict.md."""
    count = max(1, -((overlap - length) // (SIZE - overlap)))
    return [(length - SIZE) * number // max(1, count - 1) if count > 1 else 0 for number in range(count)]


def by_windows(image: np.ndarray, stage: Callable[[torch.Tensor], torch.Tensor], overlap: int) -> np.ndarray:
    """The mask by the stage's answer to each window alone; later windows end at the seam with those before."""
    height, width = image.shape[:2]
    padded = np.pad(image, [(0, max(0, SIZE - height)), (0, max(0, SIZE - width)), (0, 0)], mode="symmetric")
    mask = np.zeros(padded.shape[:2], np.uint8)
    rows, columns = starts(height, overlap), starts(width, overlap)
    for row, before_row in zip(rows, [None, *rows], strict=False):
        for column, before_column in zip(columns, [None, *columns], strict=False):
            with torch.inference_mode():
                answer = stage(to_batch(padded[None, row : row + SIZE, column : column + SIZE]))[0].argmax(0).numpy()
            top = 0 if before_row is None else (before_row + SIZE + row + 1) // 2 - row
            left = 0 if before_column is None else (before_column + SIZE + column + 1) // 2 - column
            mask[row + top : row + SIZE, column + left : column + SIZE] = answer[top:, left:]
    return mask[:height, :width]


@pytest.mark.parametrize(("batch", "overlap"), [(1, None), (3, 0), (64, 7)])
def test_masks_of_a_mixed_folder_are_the_stage_s(batch: int, overlap: int | None, run: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "images", tmp_path / "masks"
    words = [] if overlap is None else [f"--overlap={overlap}"]
    for kind, save in KINDS.items():
        (folder / kind).mkdir(parents=True)
        for name, sides in SIDES.items():
            save(folder / kind / name, pixels(*sides))
    assert main([str(run), str(folder), "--out", str(out), "--stage", "eager", f"--batch={batch}", *words]) == 0
    stage = build_model("models.unet.UNet", OPTIONS, str(tmp_path / "weights.safetensors"), 0)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) == len(KINDS) * len(SIDES)
    for file in files:
        with Image.open(out / file.relative_to(folder).with_suffix(".png")) as mask:
            found = np.array(mask)
        image = read_image(file)
        sides = SIDES[file.stem][::-1] if file.parent.name == "turned" else SIDES[file.stem]
        assert image.shape[:2] == sides
        assert np.array_equal(found, by_windows(image, stage, SIZE // 4 if overlap is None else overlap)), file


def encoded(kind: str) -> bytes:
    Image.fromarray(pixels(40, 40)).save(out := io.BytesIO(), kind)
    return out.getvalue()


def array_bytes() -> bytes:
    np.save(out := io.BytesIO(), pixels(40, 40))
    return out.getvalue()


def tiff_bytes() -> bytes:
    tifffile.imwrite(out := io.BytesIO(), pixels(40, 40), photometric="rgb")
    return out.getvalue()


def flipped(content: bytes) -> bytes:
    at = len(content) // 2
    return content[:at] + bytes(255 - value for value in content[at : at + 8]) + content[at + 8 :]


def huge_jpeg() -> bytes:
    content = encoded("JPEG")
    at = content.index(b"\xff\xc0") + 5
    return content[:at] + struct.pack(">HH", 65500, 65500) + content[at + 4 :]


def huge_png() -> bytes:
    content = encoded("PNG")
    return content[:16] + struct.pack(">II", 100_000, 100_000) + content[24:]


WHOLE = {
    "png": encoded("PNG"), "jpg": encoded("JPEG"), "gif": encoded("GIF"), "bmp": encoded("BMP"),
    "webp": encoded("WEBP"), "npy": array_bytes(), "tif": tiff_bytes(),
}  # fmt: skip
BROKEN = (
    {f"cut.{suffix}": content[: len(content) // 2] for suffix, content in WHOLE.items()}
    | {f"empty.{suffix}": b"" for suffix in WHOLE}
    | {f"header.{suffix}": content[:12] for suffix, content in WHOLE.items()}
    | {f"text.{suffix}": b"no image\n" * 99 for suffix in WHOLE}
    | {"flipped.png": flipped(WHOLE["png"]), "huge.png": huge_png(), "huge.jpg": huge_jpeg()}
)


@pytest.mark.parametrize("words", [[], ["--whole", "--batch", "1"], ["--overlay"]])
def test_broken_files_cost_themselves_alone(words: list[str], run: Path, tmp_path: Path, call: Call) -> None:
    folder, out = tmp_path / "images", tmp_path / "masks"
    folder.mkdir()
    for number, (name, content) in enumerate(BROKEN.items()):
        (folder / f"{name.replace('.', '_')}.{name.rpartition('.')[2]}").write_bytes(content)
        write_image(folder / f"{name.replace('.', '_')}-sound.png", SIZE, SIZE, seed=number)
    code, said, told = call(run, folder, "--out", out, "--stage", "eager", *words)
    lines = [line for line in told.splitlines() if line.startswith("no mask of ")]
    names = sorted(name.replace(".", "_") for name in BROKEN)
    assert sorted(line.removeprefix("no mask of ").partition(":")[0] for line in lines) == names
    assert len([line for line in told.splitlines() if " masks a second" not in line]) <= len(BROKEN) + 2
    assert (code, said) == (1, f"{len(BROKEN)} masks made, {len(BROKEN)} images without: {out}\n")
    assert len([*out.glob("*-sound.png")]) == len(BROKEN)
    assert sorted(json.loads((out / "predict.json").read_text())["failed"]) == names


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
