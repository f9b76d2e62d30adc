"""The path from files to masks: order, what waits, one sync for many masks, and errors of the writing threads."""

import os
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pipeline.inputs.input_contract import InputContract
from pipeline.predict import case_work
from pipeline.predict import cases as cases_module
from pipeline.predict.case_work import Asked, CaseWork
from pipeline.predict.cases import Case, Read, Reader, groups, read_case
from pipeline.predict.given import Given
from pipeline.predict.loop import Prediction
from pipeline.predict.mask_files import Writer
from pipeline.predict.nvjpeg import DecodeError
from pipeline.predict.sources import Predictor
from pipeline.predict.windows import Cut
from pipeline.predict.workers import Memory, Workers
from tests.predict.made_up_runs import write_image

CPU = torch.device("cpu")


def a_prediction(out: Path, batch: int = 2, contract: InputContract | None = None) -> Prediction:
    predictor = Predictor("a test's", lambda batch: batch, (batch, 3, 8, 8), CPU, contract or InputContract(), None)
    return Prediction(predictor, out, "made by a test", Cut(overlap=2))


@dataclass(frozen=True)
class Dying(CaseWork):
    """Ends its process when it reads an image."""

    at: str = ""

    def run(self, line: Connection, memories: list[Memory], alone: int) -> None:
        read = Reader.one

        def one(reader: Reader, case: Case) -> Read:
            return os._exit(3) if case.name == self.at else read(reader, case)

        Reader.one = one  # type: ignore[assignment,method-assign]  # of a process that serves this alone
        super().run(line, memories, alone)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "masks").mkdir()
    folder = tmp_path / "images"
    for number, (height, width) in enumerate([(8, 8), (21, 9), (3, 5), (8, 8), (16, 30), (8, 8), (1, 1)] * 3):
        write_image(folder / f"{number:02d}.png", height, width, seed=number)
    return folder


def test_a_large_case_is_made_before_the_next(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []
    read, write = Reader.one, Writer.write

    def one(reader: Reader, case: Case) -> Read:
        told.append(("read", case.name))
        return read(reader, case)

    def written(writer: Writer, labels: np.ndarray, mask: str, *others: Any) -> dict[str, str]:
        told.append(("written", Path(mask).stem))
        return write(writer, labels, mask, *others)

    monkeypatch.setattr(Reader, "one", one)
    monkeypatch.setattr(Writer, "write", written)
    monkeypatch.setattr(case_work, "HELD", 0)
    cases = Given(images, volumes=False)
    a_prediction(tmp_path / "masks", batch=3).make(cases, print)
    assert told == [(what, case.name) for case in cases for what in ("read", "written")]


def test_large_files_are_read_alone(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = Given(images, volumes=False)
    assert [len(group) for group in groups(cases, 8)] == [8, 8, 5]
    monkeypatch.setattr(cases_module, "BYTES_OF_A_GROUP", 0)
    assert [len(group) for group in groups(cases, 8)] == [1] * 21


@pytest.mark.fresh_process
@pytest.mark.parametrize("batch", [1, 8])
def test_processes_make_equal_masks(images: Path, tmp_path: Path, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cases, begin = Given(images, volumes=False), Workers.begin
    a_prediction(tmp_path / "masks", batch).make(cases, print)
    (tmp_path / "others").mkdir()
    monkeypatch.setattr(Workers, "begin", lambda workers, work, _: begin(workers, work, 2))
    prediction = a_prediction(tmp_path / "others", batch)
    monkeypatch.setattr(prediction, "new_workers", lambda: Workers(in_threads=False))
    found = prediction.make(cases, print)
    assert found.made == len(cases)
    for path in (tmp_path / "masks").glob("*.png"):
        assert path.read_bytes() == (tmp_path / "others" / path.name).read_bytes()


@pytest.mark.fresh_process
def test_an_image_whose_reader_dies_costs_itself(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = Given(images, volumes=False)
    prediction = a_prediction(tmp_path / "masks", batch=4)
    work = prediction.work
    monkeypatch.setattr(prediction, "work", lambda *args, **named: Dying(**vars(work(*args, **named)), at="03"))
    monkeypatch.setattr(prediction, "new_workers", lambda: Workers(in_threads=False))
    found = prediction.make(cases, print)
    assert list(found.failed) == ["03"]
    assert "03.png: the process that worked on it ended with code 3" in found.failed["03"]
    assert found.made + found.kept == len(cases) - 1
    assert len(list((tmp_path / "masks").glob("*.png"))) == len(cases) - 1


def test_files_that_the_gpu_cannot_decode_are_decoded_by_the_host(tmp_path: Path) -> None:
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for number in range(5):
        write_image(tmp_path / "images" / f"{number}.jpg", 16, 24, seed=number)
    cases = Given(tmp_path / "images", volumes=False)
    prediction = a_prediction(tmp_path / "masks")
    asked: list[int] = []

    class Decoder:
        def submit(self, asked_for: Asked, *_: object) -> Future[None]:
            asked.append(len(asked_for.files))
            (failed := Future[None]()).set_exception(DecodeError("a test's"))
            return failed

    prediction.decoder = lambda _: Decoder()  # type: ignore[assignment]
    assert prediction.make(cases, print).made == 5
    assert sum(asked) == 5
    for case in cases:
        image = read_case(case, InputContract(), None)
        assert np.array_equal(np.asarray(Image.open(tmp_path / "masks" / case.mask)), image.argmax(-1))
