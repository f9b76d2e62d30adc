"""Fixtures for every test here."""

from pathlib import Path

import pytest

from tests.export.conftest import process_state

__all__ = ["process_state"]


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    folder = tmp_path / "scans"
    folder.mkdir()
    return folder
