"""YAML whose aliases unfold into more than a machine can hold is refused before it is unfolded."""

from pathlib import Path

import pytest

from pipeline.config.request_error import RequestError
from pipeline.config.yaml_size import check_sizes, unfolded


def bomb(levels: int) -> str:
    """Nine copies of nine copies of … of nine words."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines)


def test_an_alias_counts_as_often_as_it_stands_for_something() -> None:
    """One list of 9 words, and one of 9 such lists: 10 and 91 values, two keys, and the pairs."""
    assert unfolded(Path("x.yaml"), bomb(2).encode()) == 10 + 91 + 2 + 1
    assert unfolded(Path("x.yaml"), b"{ no: yaml") == 0


def test_a_bomb_is_refused_by_its_file_and_figure(tmp_path: Path) -> None:
    """In a folder of the user's, however deep; nine levels would be 5e8 values."""
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / "mine.yaml").write_text(bomb(9))
    with pytest.raises(RequestError, match=r"mine\.yaml: its aliases unfold into 4\.9e\+08 values; 100000"):
        check_sizes([tmp_path])


def test_an_alias_of_what_it_lies_in_is_refused(tmp_path: Path) -> None:
    """It would unfold for ever."""
    (tmp_path / "mine.yaml").write_text("a: &a [1, *a]\n")
    with pytest.raises(RequestError, match="line 1 stands for what it lies in"):
        check_sizes([tmp_path])
