"""The path from files to masks: order, what waits, one sync for many masks, and errors of the writing threads."""

import errno
import io
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from models.image_batches import to_batch
from pipeline.inputs.input_contract import InputContract
from pipeline.predict import cases as cases_module
from pipeline.predict import loop, mask_files
from pipeline.predict.batches import Cutting
from pipeline.predict.cases import Case, Read, Reader, groups, read_case
from pipeline.predict.given import Given
from pipeline.predict.loop import Prediction
from pipeline.predict.reading import Reading
from pipeline.predict.sources import Predictor
from pipeline.predict.windows import Cut
from pipeline.predict.workers import WorkerDiedError, Workers
from tests.predict.made_up_runs import write_image

CPU = torch.device("cpu")


def brightest(batch: torch.Tensor) -> torch.Tensor:
    """Logits of three classes: the channel with the largest value."""
    return batch


def a_prediction(out: Path, batch: int = 2, contract: InputContract | None = None) -> Prediction:
    predictor = Predictor("a test's", brightest, (batch, 3, 8, 8), CPU, contract or InputContract(), None)
    return Prediction(predictor, out, "made by a test", Cut(overlap=2))


def ended(_: list[Case]) -> list[Read]:
    """End this process."""
    os._exit(1)


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
    cases = Given(images, volumes=False)
    found = a_prediction(tmp_path / "masks", batch).make(cases, print)
    assert found.made == len(cases)
    assert found.rate.last[1] == len(cases)
    assert sum(found.rate.shares.values()) == pytest.approx(1)
    for case in cases:
        image = read_case(case, InputContract(), None)
        assert np.array_equal(np.asarray(Image.open(tmp_path / "masks" / case.mask)), image.argmax(-1))


def test_memory_bounds_what_is_read_ahead(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No image is read before the one in front of it is taken, if one is as much as may wait."""
    cases = Given(images, volumes=False)
    prediction = a_prediction(tmp_path / "masks")
    asked: list[str] = []
    monkeypatch.setattr(loop, "BYTES_READ_AHEAD", 0)

    def one(_: Reader, case: Case) -> Read:
        asked.append(case.name)
        return Read()

    monkeypatch.setattr(Reader, "one", one)
    with Workers(1, in_threads=True) as workers, Reading(workers, prediction.reader(), None) as reading:
        for number, _ in enumerate(prediction.opened_ahead(reading, cases), 1):
            assert len(asked) == number


def test_large_files_are_read_alone(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = Given(images, volumes=False)
    assert [len(group) for group in groups(cases, 8)] == [8, 8, 5]
    monkeypatch.setattr(cases_module, "BYTES_OF_A_GROUP", 0)
    assert [len(group) for group in groups(cases, 8)] == [1] * 21


@pytest.mark.fresh_process
@pytest.mark.parametrize("batch", [1, 8])
def test_processes_make_the_same_masks(
    images: Path, tmp_path: Path, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = Given(images, volumes=False)
    a_prediction(tmp_path / "masks", batch).make(cases, print)
    (tmp_path / "others").mkdir()
    monkeypatch.setattr(loop, "Workers", lambda *_, **named: Workers(2, **named | {"in_threads": False}))
    found = a_prediction(tmp_path / "others", batch).make(cases, print)
    assert found.made == len(cases)
    for path in (tmp_path / "masks").glob("*.png"):
        assert path.read_bytes() == (tmp_path / "others" / path.name).read_bytes()


@pytest.mark.fresh_process
def test_a_worker_that_ends_is_told_and_replaced() -> None:
    with Workers(1, in_threads=False) as workers:
        with pytest.raises(WorkerDiedError, match="ended with code 3"):
            workers.submit(os._exit, 3).result()
        with pytest.raises(WorkerDiedError, match="ended with signal SIGKILL"):
            workers.submit(signal.raise_signal, signal.SIGKILL).result()
        with pytest.raises(ValueError, match="invalid literal"):
            workers.submit(int, "x").result()
        values = np.arange(10**6).reshape(10, -1)
        assert np.array_equal(workers.submit(np.transpose, values).result(), values.T)


@pytest.mark.fresh_process
def test_an_image_whose_reader_dies_costs_itself_alone(images: Path, tmp_path: Path) -> None:
    cases = [*Given(images, volumes=False)]
    with Workers(1, in_threads=False) as workers:
        reader = Reader(tmp_path / "masks", "made by a test", InputContract(), None, images_in=False)
        reading = Reading(workers, reader, None)
        found = reading.found(cases[:2], workers.submit(ended, cases))
        assert [read.problem for read in found] == ["", ""]
        [alone] = reading.found(cases[:1], workers.submit(ended, cases))
    assert "00.png: the process that worked on it ended with code 1" in alone.problem


def test_a_full_disk_ends_in_its_error_and_keeps_what_is_done(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = Given(images, volumes=False)
    given = mask_files.give_names

    def full(masks: list[Path], process: int) -> None:
        if any(mask.name == "05.png" for mask in masks):
            raise OSError(errno.ENOSPC, "No space left on device")
        given(masks, process)

    monkeypatch.setattr(mask_files, "give_names", full)
    prediction = a_prediction(tmp_path / "masks")
    with pytest.raises(OSError, match="No space left"):
        prediction.make(cases, print)
    there = {path.stem for path in (tmp_path / "masks").glob("*.png")}
    assert len(there) == prediction.outcome.made
    assert "05" not in there


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32])
def test_a_batch_is_normalised_as_in_the_run(kind: type[np.generic]) -> None:
    images = (np.random.default_rng(0).random((2, 8, 8, 3)) * 200).astype(kind)
    network = a_prediction(Path()).network
    found = network.batch_of([Cutting(image, InputContract(), "classes") for image in images])
    assert torch.equal(found, to_batch(images))


@pytest.mark.parametrize("shape", [(1, 1), (3, 300), (257, 2)])
def test_a_grey_png_is_read_by_pillow(shape: tuple[int, int]) -> None:
    labels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    with Image.open(io.BytesIO(mask_files.grey_png(labels))) as image:
        image.load()
        assert (image.mode, image.format) == ("L", "PNG")
        assert np.array_equal(np.asarray(image), labels)
