"""Fixtures for every test here."""

from pathlib import Path

import pytest

from pipeline.predict.command import main
from tests.predict.made_up_runs import SIZE, Call, Told, write_image, write_run
from tests.process_state import process_switches

__all__ = ["process_switches"]


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    folder = tmp_path / "scans"
    folder.mkdir()
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    write_image(folder / "same.png", SIZE, SIZE, seed=10)
    write_image(folder / "large.png", 41, 29, seed=11)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command; return its exit code, and what it wrote to stdout and to stderr."""

    def called(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([*map(str, words)])
        return code, *capsys.readouterr()

    return called


@pytest.fixture
def told(call: Call) -> Told:
    """Run the command, which ends with this code; return what it wrote to stderr."""

    def said(code: int, *words: object) -> str:
        found, _, told = call(*words)
        assert found == code, told
        return told

    return said
