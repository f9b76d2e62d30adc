"""The look of masks: colours, overlays, and the place of a GeoTIFF."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from pipeline.inputs.formats import place_of
from pipeline.predict.command import main
from tests.predict.made_up_runs import SIZE, write_image, write_run

PLACE = [
    (33550, 12, 3, (10.0, 10.0, 0.0), True),
    (33922, 12, 6, (0.0, 0.0, 0.0, 600000.0, 5300000.0, 0.0), True),
    (34735, 3, 8, (1, 1, 0, 1, 3072, 0, 1, 32632), True),
    (34737, 2, 0, "WGS 84|", True),
]


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    folder = tmp_path / "images"
    folder.mkdir()
    write_image(folder / "plain.png", SIZE, SIZE, seed=10)
    write_image(folder / "no_place.tif", SIZE, SIZE, seed=11)
    with Image.open(folder / "plain.png") as image:
        tifffile.imwrite(folder / "scene.TIF", np.array(image), photometric="rgb", extratags=PLACE)
    return [str(write_run(tmp_path)), str(folder), "--out", str(tmp_path / "masks"), "--stage", "eager"]


@pytest.mark.parametrize("words", [[], ["--colors"]])
def test_a_geotiff_s_mask_lies_where_it_lies(words: list[str], asked: list[str], tmp_path: Path) -> None:
    assert main([*asked, *words]) == 0
    masks = tmp_path / "masks"
    assert sorted(path.name for path in masks.iterdir() if path.suffix.lower() in (".png", ".tif")) == [
        "no_place.png", "plain.png", "scene.TIF",
    ]  # fmt: skip
    placed = {tag[0]: tag[3] for tag in place_of(masks / "scene.TIF")}
    assert placed == {tag[0]: tag[3] for tag in PLACE}
    with Image.open(masks / "plain.png") as image:
        assert np.array_equal(tifffile.imread(masks / "scene.TIF"), np.array(image))
        assert image.mode == ("P" if words else "L")


def test_colours_are_shown_and_values_stay(
    asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = tmp_path / "masks" / "plain.png"
    assert main(asked) == 0
    assert "classes up to 2, which viewers show as black; --colors" in capsys.readouterr().err
    with Image.open(plain) as image:
        classes = np.array(image)
    assert main([*asked, "--colors", "--overlay"]) == 0
    assert "viewers show" not in capsys.readouterr().err
    with Image.open(plain) as image:
        assert np.array_equal(np.array(image), classes)
        shown = np.array(image.convert("RGB"))
    assert len(np.unique(shown[classes > 0], axis=0)) == 2
    assert (shown[classes == 0] == 0).all()
    with Image.open(tmp_path / "images" / "plain.png") as image:
        picture = np.array(image)
    with Image.open(tmp_path / "masks" / "overlays" / "plain.png") as image:
        mixed = np.array(image)
    assert np.array_equal(mixed[classes == 0], picture[classes == 0])
    assert np.abs(mixed[classes > 0].astype(int) - (shown[classes > 0] / 2 + picture[classes > 0] / 2)).max() <= 1
