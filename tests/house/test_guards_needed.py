"""The list of guards is true, and the check that tries them sees which of them nobody would miss."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.house.guard import Guard
from tests.house.guards import GUARDS
from tests.house.guards_needed import ROOT, main, tried, without

CODE = "def answer(number):\n    if number < 0:\n        raise ValueError\n    return number\n"
TESTS = """
import sys
sys.path.insert(0, "pipeline")
import pytest, guarded
def test_with_it():
    with pytest.raises(ValueError):
        guarded.answer(-1)
def test_beside_it():
    assert guarded.answer(1) == 1
"""
GUARD = Guard(
    "negative numbers", "pipeline/guarded.py", "if number < 0:", "if False:", "tests/test_it.py::test_with_it"
)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.what)
def test_each_guard_stands_where_the_list_says(guard: Guard) -> None:
    """Once, with a test of that name; whether the test misses it is tried by hand."""
    assert without(guard, ROOT)
    file, _, name = guard.test.partition("::")
    assert f"def {name}" in (ROOT / file).read_text()


def test_names_are_said_once() -> None:
    assert len({guard.what for guard in GUARDS}) == len(GUARDS)


def test_a_guard_that_no_test_needs_is_found(tmp_path: Path) -> None:
    """And one whose test isn't there; the tree stays as it was."""
    for name, text in (("pipeline/guarded.py", CODE), ("tests/test_it.py", TESTS)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    idle = replace(GUARD, test="tests/test_it.py::test_beside_it")
    absent = replace(GUARD, test="tests/test_it.py::test_nowhere")
    said = [came for _, came in tried([GUARD, idle, absent], tmp_path)]
    assert said == ["noticed", "NOT NOTICED", "no test ran (exit code 4)"]
    assert (tmp_path / "pipeline/guarded.py").read_text() == CODE


def test_code_that_is_not_there_once_is_refused(tmp_path: Path) -> None:
    (tmp_path / "guarded.py").write_text("if number < 0:\nif number < 0:\n")
    with pytest.raises(ValueError, match="2 times"):
        without(replace(GUARD, file="guarded.py"), tmp_path)


def test_a_request_that_no_guard_answers_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no guard is called so"]) == 1
    assert "0 of 0" in capsys.readouterr().out
