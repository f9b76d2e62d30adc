"""A few spoilt inputs of each kind, the same in every run; `python -m tests.fuzz --minutes 10` tries others."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.fuzz.__main__ import fuzz, tried
from tests.fuzz.targets import Target

INPUTS = {
    "records": 8,
    "checkpoints": 40,
    "images": 60,
    "overrides": 6,
    "volumes": 200,
    "tensors": 60,
}  # a second of each


@pytest.mark.parametrize("name", INPUTS)
def test_spoilt_input_is_refused_in_one_line(name: str) -> None:
    assert fuzz([name], 0, 7, INPUTS[name])[1] == []


@pytest.mark.parametrize("error", [KeyError("x"), RecursionError(), ValueError("two\nlines"), ValueError("")])
def test_any_other_error_is_found(error: Exception, tmp_path: Path) -> None:
    read = Mock(side_effect=error)
    found = tried("injected", Target(lambda draw: draw.random(), read, (ValueError,)), 3, 7, tmp_path)
    assert (found.target, found.number) == ("injected", 3)
