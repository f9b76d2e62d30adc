"""The path from files to masks: order, what waits, one sync for many masks, and errors of the writing threads."""

import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from models.image_batches import to_batch
from pipeline.inputs.input_contract import InputContract
from pipeline.predict import loop, mask_files
from pipeline.predict.batches import Cutting
from pipeline.predict.cases import cases_in, read_case
from pipeline.predict.loop import Prediction
from pipeline.predict.sources import Predictor
from pipeline.predict.windows import Cut
from tests.predict.made_up_runs import write_image

CPU = torch.device("cpu")


def brightest(batch: torch.Tensor) -> torch.Tensor:
    """Logits of three classes: the channel with the largest value."""
    return batch


def a_prediction(out: Path, batch: int = 2, contract: InputContract | None = None) -> Prediction:
    predictor = Predictor("a test's", brightest, (batch, 3, 8, 8), CPU, contract or InputContract(), None)
    return Prediction(predictor, out, "made by a test", Cut(overlap=2))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "masks").mkdir()
    folder = tmp_path / "images"
    folder.mkdir()
    for number, (height, width) in enumerate([(8, 8), (21, 9), (3, 5), (8, 8), (16, 30), (8, 8), (1, 1)] * 3):
        write_image(folder / f"{number:02d}.png", height, width, seed=number)
    return folder


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_each_mask_is_of_its_own_image(images: Path, tmp_path: Path, batch: int) -> None:
    cases, _ = cases_in(images, nnunet=False, volumes=False)
    found = a_prediction(tmp_path / "masks", batch).make(cases, print)
    assert sorted(found.made) == [case.name for case in cases]
    assert found.rate.last[1] == len(cases)
    assert sum(found.rate.shares.values()) == pytest.approx(1)
    for case in cases:
        image = read_case(case, InputContract(), None)
        assert np.array_equal(np.asarray(Image.open(tmp_path / "masks" / case.mask)), image.argmax(-1))


def test_memory_bounds_what_is_read_ahead(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One image more than fits is read at most, and at first one alone."""
    cases, _ = cases_in(images, nnunet=False, volumes=False)
    prediction = a_prediction(tmp_path / "masks")
    asked: list[str] = []
    monkeypatch.setattr(loop, "BYTES_READ_AHEAD", 0)
    monkeypatch.setattr(prediction, "opened", lambda case: asked.append(case.name))
    with ThreadPoolExecutor(1) as pool:
        for number, _ in enumerate(prediction.opened_ahead(pool, cases), 1):
            assert len(asked) == number


def test_a_full_disk_ends_in_its_error_and_keeps_what_is_done(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases, _ = cases_in(images, nnunet=False, volumes=False)
    given = mask_files.give_names

    def full(masks: list[Path]) -> None:
        if any(mask.name == "05.png" for mask in masks):
            raise OSError(errno.ENOSPC, "No space left on device")
        given(masks)

    monkeypatch.setattr(mask_files, "give_names", full)
    prediction = a_prediction(tmp_path / "masks")
    with pytest.raises(OSError, match="No space left"):
        prediction.make(cases, print)
    there = {path.stem for path in (tmp_path / "masks").glob("*.png")}
    assert there == set(prediction.outcome.made)
    assert "05" not in there


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32])
def test_a_batch_is_normalised_as_in_the_run(kind: type[np.generic]) -> None:
    images = (np.random.default_rng(0).random((2, 8, 8, 3)) * 200).astype(kind)
    network = a_prediction(Path()).network
    found = network.batch_of([Cutting(image, InputContract(), "classes") for image in images])
    assert torch.equal(found, to_batch(images))
