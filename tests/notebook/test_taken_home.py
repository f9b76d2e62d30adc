"""The notebook's commands: their words, what they leave, and what they refuse as one exception."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

import pipeline
from pipeline.notebook.commands import own_folders
from pipeline.notebook.taken_home import Masks


class Ended:
    code, said, told = 0, "", ""
    words: ClassVar[list[str]] = []
    environment: ClassVar[dict[str, str]] = {}

    def __init__(self, words: list[str], env: dict[str, str], **_: object) -> None:
        type(self).words, type(self).environment = words[3:], env
        self.stdout = io.StringIO(self.said)
        if self.told:
            Path("masks/predict.json").write_text(self.told)

    def wait(self) -> int:
        return self.code

    def poll(self) -> int:
        return self.code


@pytest.fixture(autouse=True)
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Ended]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "masks").mkdir()
    kind = type("OneEnd", (Ended,), {})
    monkeypatch.setattr(subprocess, "Popen", kind)
    return kind


def test_masks_are_told(process: type[Ended], capsys: pytest.CaptureFixture[str]) -> None:
    """Also of a folder in which an image has none: exit code 1."""
    process.code, process.said = 1, "no mask of a: cut off\n"
    process.told = json.dumps({"finished": True, "made": 2, "kept": 1, "failed": {"a": "cut off"}})
    found = pipeline.predict("run", "images", "masks", stage="half", overlap=0, whole=True)
    assert found == Masks(Path("masks"), 2, 1, {"a": "cut off"})
    assert process.words == ["run", "images", "--out", "masks", "--stage", "half", "--overlap", "0", "--whole"]
    pipeline.predict("run", "volumes", "masks", step=0.25)
    assert process.words == ["run", "volumes", "--out", "masks", "--step", "0.25"]
    assert capsys.readouterr().err == 2 * process.said


def test_what_ended_badly_is_an_exception_of_its_last_line(process: type[Ended]) -> None:
    process.code, process.said = 2, "note: x\nerror: the run has no such stage\n"
    with pytest.raises(pipeline.RequestError, match=r"^the run has no such stage$"):
        pipeline.predict("run", "images", "masks")
    process.code, process.said = 1, "error: OutOfMemoryError: no memory\n"
    with pytest.raises(pipeline.RequestError, match="no memory"):
        pipeline.predict("run", "images", "masks")
    with pytest.raises(pipeline.RequestError, match=r"^OutOfMemoryError: no memory$"):
        pipeline.export("run", "bundle")
    process.code = 130
    with pytest.raises(KeyboardInterrupt):
        pipeline.export("run", "bundle")


def test_a_bundle_is_named(process: type[Ended]) -> None:
    assert pipeline.export("run", "bundle", stage="half", dynamic=["batch"]) == Path("bundle")
    assert process.words == ["run", "--to", "bundle", "--dynamic", "batch", "--stage", "half"]
    pipeline.export("run", "bundle", uint8_in=True, classes_out=True)
    assert process.words == ["run", "--to", "bundle", "--uint8-in", "--classes-out"]


def test_a_command_finds_the_same(process: type[Ended], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path / "masks")
    pipeline.export("run", "bundle")
    found = process.environment["PYTHONPATH"].split(os.pathsep)
    assert str(tmp_path / "masks") in found
    assert not any(Path(folder).is_relative_to(sys.prefix) for folder in own_folders())
