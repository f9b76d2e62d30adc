"""What a run's end needs is imported at its beginning, and whatever can't be costs nothing there."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline.cli import late_imports


def test_modules_are_imported_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that isn't there ends the thread without a word."""
    (tmp_path / "needed_late.py").write_text("import threading\nIN = threading.current_thread()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "needed_late", raising=False)
    thread = late_imports.begin(("needed_late", "no_such_module"))
    thread.join(timeout=5.0)
    assert not thread.is_alive()
    assert sys.modules.pop("needed_late").IN is thread


def test_what_is_imported_early_is_there() -> None:
    assert all(find_spec(name) for name in late_imports.LATE)
