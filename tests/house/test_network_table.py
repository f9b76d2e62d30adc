"""The README's table is what the recorded samples give."""

from pathlib import Path

from tests.house.network_table import ROWS, table


def test_the_readme_has_the_recorded_figures() -> None:
    """Every cell of every network."""
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert table() in text
    assert len(table().splitlines()) == len(ROWS) + 2
