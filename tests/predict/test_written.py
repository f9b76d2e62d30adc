"""Images by a file, folders, a list or a pattern; what is written: PNGs, npy, zarr, TIFF, NIfTI, of classes or more."""

import importlib
import io
import json
import sqlite3
import subprocess
import sys
import zlib
from argparse import ArgumentTypeError
from contextlib import suppress
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from models.build import build_model
from models.image_batches import to_batch
from pipeline.config.request_error import RequestError
from pipeline.inputs.formats import place_of
from pipeline.inputs.image_files import as_classes, read_image, read_label, read_values
from pipeline.inputs.input_contract import Axes, InputContract, LabelRules
from pipeline.predict import mask_files
from pipeline.predict.command import main, place
from pipeline.predict.given import Given
from pipeline.predict.loop import Prediction
from pipeline.predict.mask_files import Look
from pipeline.predict.sources import Predictor
from pipeline.predict.windows import Cut
from tests.inputs.test_volume_files import nifti, read_volume
from tests.predict.made_up_runs import OPTIONS, SIZE, Call, Told, write_image, write_volumes_run

PLACE = [
    (33550, 12, 3, (10.0, 10.0, 0.0), True),
    (33922, 12, 6, (0.0, 0.0, 0.0, 600000.0, 5300000.0, 0.0), True),
    (34735, 3, 8, (1, 1, 0, 1, 3072, 0, 1, 32632), True),
    (34737, 2, 0, "WGS 84|", True),
]


@pytest.fixture
def asked(run: Path, images: Path, tmp_path: Path) -> list[str]:
    with Image.open(images / "same.png") as image:
        tifffile.imwrite(images / "scene.tif", np.array(image), photometric="rgb", extratags=PLACE)
    return [str(run), str(images), "--out", str(tmp_path / "masks"), "--stage", "eager"]


def masks_of(asked: list[str], tmp_path: Path, *words: str) -> Path:
    out = tmp_path / "-".join(["masks", *words])
    assert main([*asked[:3], str(out), *asked[4:], *words]) == 0
    return out


def zarr_values(path: Path) -> np.ndarray:
    """The array of a zip archive by the rules of zarr's version 2; by zarr itself, too, if it is installed."""
    with ZipFile(path) as archive:
        about = json.loads(archive.read(".zarray"))
        values = np.zeros(about["shape"], about["dtype"])
        for name in set(archive.namelist()) - {".zarray"}:
            starts = [int(at) * side for at, side in zip(name.split("."), about["chunks"], strict=True)]
            place = values[tuple(slice(at, at + side) for at, side in zip(starts, about["chunks"], strict=True))]
            chunk = np.frombuffer(zlib.decompress(archive.read(name)), about["dtype"]).reshape(about["chunks"])
            place[...] = chunk[tuple(map(slice, place.shape))]
    with suppress(ImportError):
        zarr = importlib.import_module("zarr")
        assert np.array_equal(zarr.open(zarr.storage.ZipStore(path, mode="r"), mode="r")[...], values)
    return values


def test_every_format_holds_the_same_classes(asked: list[str], tmp_path: Path) -> None:
    png, npy, zarr = (masks_of(asked, tmp_path, "--format", name) for name in ("files", "npy", "zarr"))
    assert sorted(path.name for path in npy.glob("*.npy")) == ["large.npy", "same.npy", "scene.npy"]
    for name in ("same", "large"):
        with Image.open(png / f"{name}.png") as image:
            assert np.array_equal(np.load(npy / f"{name}.npy"), np.array(image))
        assert np.array_equal(np.load(npy / f"{name}.npy"), zarr_values(zarr / f"{name}.zarr.zip"))
    assert main([*asked[:3], str(zarr), *asked[4:], "--format", "zarr"]) == 0
    assert json.loads((zarr / "predict.json").read_text())["kept"] == 3


@pytest.mark.parametrize("level", [0, 1, 9])
def test_the_level_changes_size_and_not_values(level: int, asked: list[str], tmp_path: Path) -> None:
    first, other = masks_of(asked, tmp_path), masks_of(asked, tmp_path, "--compression", str(level))
    for name in ("same.png", "large.png", "scene.tif"):
        with Image.open(first / name) as one, Image.open(other / name) as two:
            assert np.array_equal(np.array(one), np.array(two))
    assert ((other / "large.png").stat().st_size > 41 * 29) == (level == 0)
    assert main([*asked[:3], str(first), *asked[4:], "--compression", str(level)]) == 0
    assert json.loads((first / "predict.json").read_text())["kept"] == 3


@pytest.mark.parametrize("shape", [(1, 1), (3, 300), (257, 9)])
def test_two_classes_take_a_bit_a_pixel_and_are_read_as_labels(shape: tuple[int, int], tmp_path: Path) -> None:
    labels = np.random.default_rng(0).integers(0, 2, shape, np.uint8)
    content = mask_files.png(labels, Look(classes=2))
    (tmp_path / "mask.png").write_bytes(content)
    with Image.open(io.BytesIO(content)) as image:
        assert image.mode == "1"
        assert np.array_equal(np.array(image), labels)
    read = read_label(tmp_path / "mask.png", LabelRules())
    assert np.array_equal(as_classes([read], [tmp_path / "mask.png"], LabelRules())[0], labels)
    for look, mode in ((Look(classes=3), "L"), (Look(), "L"), (Look(((0, 0, 0), (9, 8, 7)), classes=2), "P")):
        with Image.open(io.BytesIO(mask_files.png(labels, look))) as image:
            assert image.mode == mode


@pytest.mark.parametrize(("channels", "classes"), [(1, 2), (2, 2), (3, 3)])
def test_the_networks_classes_choose_the_bits(channels: int, classes: int, tmp_path: Path) -> None:
    """Which viewers show then: two classes are black and white, and no note says that they are dark."""
    write_image(tmp_path / "a.png", SIZE, SIZE)

    def run(batch: torch.Tensor) -> torch.Tensor:
        return (batch - batch.mean())[:, :channels]

    device = torch.device("cpu")
    predictor = Predictor("a test's", run, (1, 3, SIZE, SIZE), device, InputContract(), None, classes=classes)
    (out := tmp_path / "masks").mkdir()
    found = Prediction(predictor, out, "made by a test", Cut()).make(Given(tmp_path / "a.png", volumes=False), print)
    with Image.open(out / "a.png") as image:
        assert image.mode == ("1" if classes == 2 else "L")
    assert (found.largest > 0) == (classes > 2)


def logits_of(folder: Path, image: Path) -> torch.Tensor:
    net = build_model("models.unet.UNet", OPTIONS, str(folder / "weights.safetensors"), 0)
    with torch.inference_mode():
        logits: torch.Tensor = net(to_batch(read_image(image)[None]))
    return logits


@pytest.mark.parametrize("form", ["files", "npy", "zarr"])
def test_probabilities_are_the_softmax_of_the_logits(form: str, asked: list[str], tmp_path: Path) -> None:
    out = masks_of(asked, tmp_path, "--probabilities", "--format", form)
    expected = logits_of(tmp_path, tmp_path / "images" / "same.png").softmax(1)[0].movedim(0, -1)
    found = zarr_values(out / "same.zarr.zip") if form == "zarr" else np.load(out / "same.npy")
    assert (found.dtype, found.shape) == (np.float16, (SIZE, SIZE, 3))
    assert np.abs(found - expected.numpy()).max() < 1e-3
    if form == "files":
        assert np.array_equal(tifffile.imread(out / "scene.tif"), found)
        assert np.load(out / "large.npy").shape == (41, 29, 3)
    assert json.loads((out / "predict.json").read_text())["product"] == "probability map"


@pytest.mark.parametrize("axes", ["zyx", "xyz"])
def test_probabilities_of_volumes_are_of_the_volumes_kind(axes: Axes, scans: Path, tmp_path: Path) -> None:
    """NIfTI has no 16 bits: it holds them in fp32."""
    rng = np.random.default_rng(1)
    np.save(scans / "large.npy", rng.normal(size=(8, 12, 8)))
    (scans / "a.nii").write_bytes(nifti((rng.normal(size=(8, 8, 8)) * 100).astype(np.int16)))
    run, out = write_volumes_run(tmp_path), tmp_path / "masks"
    record = json.loads((run / "results.json").read_text())
    record["config"]["data"]["contract"]["axes"] = axes
    (run / "results.json").write_text(json.dumps(record))
    assert main([str(run), str(scans), "--out", str(out), "--stage", "eager", "--probabilities"]) == 0
    found = np.load(out / "large.npy")
    assert found.dtype == np.float16
    assert np.abs(found.sum(-1) - 1).max() < 2e-3
    net = build_model("tests.input_nets.Volumes", {"channels": 1}, str(tmp_path / "weights.safetensors"), 0)
    volume = read_volume(scans / "a.nii", 1, axes=axes)
    with torch.inference_mode():
        expected = net(to_batch(volume[None], InputContract(1, "zscore", scale=1.0))).softmax(1)[0].movedim(0, -1)
    values = read_values(out / "a.nii", "raw", volumes=True, axes=axes)
    assert values.dtype == np.float32
    assert np.abs(values - expected.numpy()).max() < 1e-3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--compression", "10"], "--compression 10: expected an integer from 0 to 9"),
        (["--compression", "1", "--format", "npy"], "--compression 1 --format npy: they exclude each other"),
        (["--colors", "--format", "zarr"], "--colors --format zarr: they exclude each other; leave one out"),
        (["--overlay", "--format", "npy"], "--overlay --format npy: they exclude each other"),
        (["--probabilities", "--colors"], "--probabilities --colors: they exclude each other"),
        (["--probabilities", "--overlay"], "--probabilities --overlay: they exclude each other"),
        (["--format", "parquet"], "--format parquet: of --engine ray alone"),
    ],
)
def test_options_that_exclude_each_other_are_refused(words: list[str], said: str, asked: list[str], told: Told) -> None:
    assert f"error: {said}" in told(2, *asked, *words)


@pytest.mark.parametrize("words", [[], ["--colors"]])
def test_a_geotiff_s_mask_lies_where_it_lies(words: list[str], asked: list[str], tmp_path: Path) -> None:
    write_image(tmp_path / "images" / "no_place.tif", SIZE, SIZE, seed=11)
    assert main([*asked, *words]) == 0
    masks = tmp_path / "masks"
    assert sorted(path.name for path in masks.glob("[a-z]*.[pt]*")) == [
        "large.png", "no_place.png", "same.png", "scene.tif",
    ]  # fmt: skip
    placed = {tag[0]: tag[3] for tag in place_of(masks / "scene.tif")}
    assert placed == {tag[0]: tag[3] for tag in PLACE}
    with Image.open(masks / "same.png") as image:
        assert np.array_equal(tifffile.imread(masks / "scene.tif"), np.array(image))
        assert image.mode == ("P" if words else "L")


def test_colours_are_shown_and_values_stay(asked: list[str], tmp_path: Path, call: Call) -> None:
    plain = tmp_path / "masks" / "same.png"
    assert "classes up to 2, which viewers show as black; --colors" in call(*asked)[2]
    with Image.open(plain) as image:
        classes = np.array(image)
    assert "viewers show" not in call(*asked, "--colors", "--overlay")[2]
    with Image.open(plain) as image:
        assert np.array_equal(np.array(image), classes)
        shown = np.array(image.convert("RGB"))
    assert len(np.unique(shown[classes > 0], axis=0)) == 2
    assert (shown[classes == 0] == 0).all()
    with Image.open(tmp_path / "images" / "same.png") as image:
        picture = np.array(image)
    with Image.open(tmp_path / "masks" / "overlays" / "same.png") as image:
        mixed = np.array(image)
    assert np.array_equal(mixed[classes == 0], picture[classes == 0])
    assert np.abs(mixed[classes > 0].astype(int) - (shown[classes > 0] / 2 + picture[classes > 0] / 2)).max() <= 1


NESTED = ["a, b.jpg", "one/a, b.jpg", "one/deep/c.png", "two/c.png"]


@pytest.fixture
def in_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(NESTED):
        path = tmp_path / "in" / name
        write_image(path, SIZE, SIZE, seed=seed)
    return tmp_path / "in"


def named(place: str) -> list[str]:
    given = Given(Path(place), volumes=False)
    cases = [*given]
    assert len(given) == len(cases)
    return [case.mask for case in cases]


@pytest.mark.parametrize(
    ("place", "masks"),
    [
        ("in", ["a, b.png", "one/a, b.png", "one/deep/c.png", "two/c.png"]),
        ("in/one/a, b.jpg", ["a, b.png"]),
        ("in/**/*.png", ["one/deep/c.png", "two/c.png"]),
        ("in/*/*", ["one/a, b.png", "two/c.png"]),
        ("list.txt", ["in/a, b.png", "elsewhere/x.png", "in/two/c.png", "notes.md.png"]),
    ],
)
def test_masks_keep_the_relative_path_of_their_image(in_folders: Path, place: str, masks: list[str]) -> None:
    lines = ["in/a, b.jpg", "/elsewhere/x.jpg", "", str(in_folders / "one/../two/c.png"), "notes.md"]
    (in_folders.parent / "list.txt").write_text("\ufeff" + "\r\n".join(lines))  # as some editors begin a text
    assert named(place) == masks


@pytest.mark.parametrize("place", ["in", "list.txt", "in/**/*"])
def test_two_images_of_one_mask_are_refused(in_folders: Path, place: str) -> None:
    write_image(in_folders / "two" / "c.jpg", SIZE, SIZE)
    (in_folders.parent / "list.txt").write_text("in/two/c.jpg\nin/one/deep/c.png\nin/two/c.png\n")
    with pytest.raises(RequestError, match=r"c\.\w+, c\.\w+ would share the mask .*two/c\.png; give each a name"):
        len(Given(Path(place), volumes=False))


@pytest.mark.parametrize(
    ("place", "said"), [("in/one/notes.md", "no image in it"), ("in/*.tif", "no image in it"), ("x.jpg", "no such")]
)
def test_no_image_is_refused(in_folders: Path, place: str, said: str) -> None:
    (in_folders / "one" / "notes.md").touch()
    with pytest.raises(RequestError, match=said):
        len(Given(Path(place), volumes=False))


def test_names_without_room_are_told(in_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = sqlite3.connect("")
    full.execute("PRAGMA max_page_count = 1")
    monkeypatch.setattr(sqlite3, "connect", lambda *_, **__: full)
    with pytest.raises(RequestError, match="the names can't be kept there: database or disk is full; TMPDIR"):
        len(Given(in_folders, volumes=False))


def test_a_variable_that_is_not_set_is_no_folder() -> None:
    with pytest.raises(ArgumentTypeError, match="expected a path"):
        place("")


def test_a_list_makes_masks_in_folders_and_keeps_them(run: Path, in_folders: Path, call: Call) -> None:
    lines = [*(f"in/{name}" for name in NESTED), "in/gone.png", "in/notes.md", "  ", "other"]
    (in_folders / "notes.md").touch()
    (in_folders.parent / "other").mkdir()
    (in_folders.parent / "other" / "memory").symlink_to("/proc/self/mem")  # whose first byte can't be read
    (in_folders.parent / "list.txt").write_text("\n".join(lines))
    asked = (run, "list.txt", "--out", "in/masks", "--stage", "eager")
    code, said, told = call(*asked)
    assert (code, said) == (1, "4 masks made, 3 images without: in/masks\n")
    assert "of other: other: no image; .bmp" in told
    assert "in/gone: in/gone.png: No such file or directory" in told
    assert "in/notes.md: no image; .bmp" in told.replace(".zarr, ", "")
    assert sorted(str(path.relative_to("in/masks/in")) for path in Path("in/masks").rglob("[!.]*.png")) == [
        "a, b.png", "one/a, b.png", "one/deep/c.png", "two/c.png",
    ]  # fmt: skip
    code, said, told = call(run, "in", *asked[2:])
    assert (code, said) == (0, "4 masks made: in/masks\n")
    assert "left out, not read as images: notes.md, masks" in told
    assert call(*asked)[1] == "0 masks made, 4 were there, 3 images without: in/masks\n"
    assert json.loads(Path("in/masks/predict.json").read_text())["kept"] == 4
    (in_folders / f"{'m' * 250}.png").touch()
    code, said, told = call(run, "in", "--out", "in/zarr", *asked[4:], "--format", "zarr")
    assert (code, said) == (1, "4 masks made, 1 image without: in/zarr\n")
    assert ": the mask's name, with .zarr.zip, exceeds 255 bytes; rename " in told


STREAM = """
import sys
from pathlib import Path
from pipeline.predict.given import Given
from pipeline.predict.mask_files import Statements
def peak():  # in KiB; ru_maxrss begins at that of the process that started this one
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
given = Given(Path(sys.argv[1]), volumes=False)
before = peak()
assert len(given) == int(sys.argv[2])
out = Path(sys.argv[3])
given.statements = Statements(out)
made = sum(case.is_made(out, "") for case in given)
print(made, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    sys.getrefcount(sys.intern(repr(sys))) > 2**20,
    reason="this Python never frees a path's names (python/cpython#113993)",
)
def test_a_million_names_take_no_more_memory_than_a_few(tmp_path: Path) -> None:
    number = 1_000_000
    with (tmp_path / "list.txt").open("w") as file:
        file.writelines(f"/data/{at % 1000:03d}/{at:08d}.jpg\n" for at in range(number))
    words = [sys.executable, "-c", STREAM, str(tmp_path / "list.txt"), str(number), str(tmp_path / "masks")]
    made, kib = map(int, subprocess.run(words, capture_output=True, check=True, text=True).stdout.split())
    assert made == 0
    assert kib < 20_000  # a name in a list takes 0.08 KiB
