"""Images by a file, nested folders, a list or a pattern; names are streamed."""

import json
import sqlite3
import subprocess
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from pipeline.config.request_error import RequestError
from pipeline.predict.command import place
from pipeline.predict.given import Given
from tests.predict.made_up_runs import SIZE, Call, write_image

NESTED = ["a, b.jpg", "one/a, b.jpg", "one/deep/c.png", "two/c.png"]


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
def test_masks_keep_the_relative_path_of_their_image(images: Path, place: str, masks: list[str]) -> None:
    lines = ["in/a, b.jpg", "/elsewhere/x.jpg", "", str(images / "one/../two/c.png"), "notes.md"]
    (images.parent / "list.txt").write_text("\ufeff" + "\r\n".join(lines))  # as some editors begin a text
    assert named(place) == masks


@pytest.mark.parametrize("place", ["in", "list.txt", "in/**/*"])
def test_two_images_of_one_mask_are_refused(images: Path, place: str) -> None:
    write_image(images / "two" / "c.jpg", SIZE, SIZE)
    (images.parent / "list.txt").write_text("in/two/c.jpg\nin/one/deep/c.png\nin/two/c.png\n")
    with pytest.raises(RequestError, match=r"c\.\w+, c\.\w+ would share the mask .*two/c\.png; give each a name"):
        len(Given(Path(place), volumes=False))


@pytest.mark.parametrize(
    ("place", "said"), [("in/one/notes.md", "no image in it"), ("in/*.tif", "no image in it"), ("x.jpg", "no such")]
)
def test_no_image_is_refused(images: Path, place: str, said: str) -> None:
    (images / "one" / "notes.md").touch()
    with pytest.raises(RequestError, match=said):
        len(Given(Path(place), volumes=False))


def test_names_without_room_are_told(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = sqlite3.connect("")
    full.execute("PRAGMA max_page_count = 1")
    monkeypatch.setattr(sqlite3, "connect", lambda *_, **__: full)
    with pytest.raises(RequestError, match="the names can't be kept there: database or disk is full; TMPDIR"):
        len(Given(images, volumes=False))


def test_a_variable_that_is_not_set_is_no_folder() -> None:
    with pytest.raises(ArgumentTypeError, match="expected a path"):
        place("")


def test_a_list_makes_masks_in_folders_and_keeps_them(run: Path, images: Path, call: Call) -> None:
    lines = [*(f"in/{name}" for name in NESTED), "in/gone.png", "in/notes.md"]
    (images / "notes.md").touch()
    (images.parent / "list.txt").write_text("\n".join(lines))
    asked = (run, "list.txt", "--out", "in/masks", "--stage", "eager")
    code, said, told = call(*asked)
    assert (code, said) == (1, "4 masks made, 2 images without: in/masks\n")
    assert "in/gone: in/gone.png: No such file or directory" in told
    assert "in/notes.md: no image; .bmp" in told.replace(".zarr, ", "")
    assert sorted(str(path.relative_to("in/masks/in")) for path in Path("in/masks").rglob("[!.]*.png")) == [
        "a, b.png", "one/a, b.png", "one/deep/c.png", "two/c.png",
    ]  # fmt: skip
    code, said, told = call(run, "in", *asked[2:])
    assert (code, said) == (0, "4 masks made: in/masks\n")
    assert "left out, not read as images: notes.md, masks" in told
    assert call(*asked)[1] == "0 masks made, 4 were there, 2 images without: in/masks\n"
    assert json.loads(Path("in/masks/predict.json").read_text())["kept"] == 4
    (images / f"{'m' * 250}.png").touch()
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
def test_a_million_names_take_no_more_memory_than_a_few(tmp_path: Path) -> None:
    number = 1_000_000
    with (tmp_path / "list.txt").open("w") as file:
        file.writelines(f"/data/{at % 1000:03d}/{at:08d}.jpg\n" for at in range(number))
    words = [sys.executable, "-c", STREAM, str(tmp_path / "list.txt"), str(number), str(tmp_path / "masks")]
    made, kib = map(int, subprocess.run(words, capture_output=True, check=True, text=True).stdout.split())
    assert made == 0
    assert kib < 20_000  # a name in a list takes 0.08 KiB
