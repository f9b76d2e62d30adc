"""Fixtures for every test here."""

from pathlib import Path

import pytest

from tests.export.conftest import process_state
from tests.predict.made_up_runs import write_run

__all__ = ["process_state"]


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    folder = tmp_path / "scans"
    folder.mkdir()
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path)
