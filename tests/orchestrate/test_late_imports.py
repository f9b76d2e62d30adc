"""What a run's end needs is imported at its beginning, and whatever can't be costs nothing there."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline.orchestrate import late_imports


def test_modules_are_imported_as_far_as_they_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that isn't ends it without a word."""
    (tmp_path / "needed_late.py").write_text("FOUND = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    late_imports.import_late(("needed_late", "no_such_module", "needed_never"))
    assert sys.modules.pop("needed_late").FOUND


def test_what_is_imported_early_is_there() -> None:
    assert all(find_spec(name) for name in late_imports.LATE)
