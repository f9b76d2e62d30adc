"""Masks that a person can compare: the reference, the winner, and every pixel in which they differ."""

import base64
import io
import os
from pathlib import Path

import numpy as np
from PIL import Image

from pipeline.report.gallery import CROP, DIFFERS, gallery, marked
from pipeline.report.html import page
from pipeline.worker import reference
from tests.made_up_request import changed
from tests.report import made_up_run as made_up

RUN = made_up.run()


def save(folder: Path, name: str, mask: np.ndarray, index: int = 0) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    reference.mask_picture(mask).save(folder / name / f"mask_{index}.png")


def left(folder: Path, size: int = 128) -> np.ndarray:
    """The image and the reference's mask; compile, which wins, differs in one pixel."""
    mask = np.zeros((size, size), dtype=np.uint8)
    reference.save_pictures(mask[None], folder / "reference", np.zeros((1, size, size, 3), dtype=np.uint8))
    save(folder, "half", mask)
    mask[100, 3] = 1
    save(folder, "compile", mask)
    return mask


def test_the_winner_stands_beside_the_reference_with_their_difference(tmp_path: Path) -> None:
    left(tmp_path)
    found = gallery(made_up.summary(RUN), tmp_path)
    overview, crop, stages = ([part.caption for part in row] for row in (found.overview, found.crop, found.stages))
    assert overview == ["the image", "fp32 reference", "torch.compile", "1 pixel differs"]
    assert crop == ["the image", "fp32 reference", "the winner", "1 pixel differs"]
    assert stages == ["half precision: no pixel differs", "torch.compile: 1 pixel differs"]
    assert page(made_up.summary(RUN), found).count("<img ") == 10


def test_the_image_that_differs_most_is_shown(tmp_path: Path) -> None:
    mask = left(tmp_path)
    save(tmp_path, "reference", np.zeros_like(mask), 1)
    mask[:9] = 1
    save(tmp_path, "compile", mask, 1)
    assert gallery(made_up.summary(RUN), tmp_path).overview[-1].caption == f"{9 * 128 + 1:,} pixels differ"


def test_no_differing_pixel_is_lost_when_a_mask_is_shrunk() -> None:
    differs = np.zeros((2048, 2048), dtype=bool)
    differs[1777, 5] = True
    small = np.asarray(marked(Image.new("RGB", (2048, 2048)), differs, 40))
    assert small.shape == (40, 40, 3)
    assert (small == DIFFERS).all(axis=-1).sum() == 1


def test_crop_s_pixels_are_the_mask_s_own(tmp_path: Path) -> None:
    left(tmp_path)
    data = gallery(made_up.summary(RUN), tmp_path).crop[-1].uri.split(",")[1]
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))
    assert shown.shape == (CROP, CROP, 3)
    assert (shown == DIFFERS).all(axis=-1).sum() == 1


def test_a_stage_s_name_is_never_a_path(tmp_path: Path) -> None:
    """A record that names a stage `..` makes the report read nothing outside the run's folder."""
    left(tmp_path / "run")
    save(tmp_path, "secret", np.zeros((128, 128), dtype=np.uint8))
    sly = made_up.summary(made_up.run(stages=[changed(RUN.stages[0], name="../secret")]))
    assert gallery(sly, tmp_path / "run").stages == []


def test_a_run_that_left_no_masks_shows_none(tmp_path: Path) -> None:
    assert gallery(made_up.summary(RUN), tmp_path).overview == []


def test_what_stands_in_a_mask_s_place_holds_up_no_report(tmp_path: Path) -> None:
    """A pipe, which would wait for its writer, a folder, and a picture of another format have no place in it."""
    left(tmp_path)
    mask = tmp_path / "compile" / "mask_0.png"
    mask.unlink()
    os.mkfifo(mask)
    assert len(gallery(made_up.summary(RUN), tmp_path).overview) == 2
    mask.unlink()
    Image.new("RGB", (128, 128)).save(mask, "GIF")
    assert len(gallery(made_up.summary(RUN), tmp_path).overview) == 2
