"""The documented columns of results.csv are those that it has."""

import re
from pathlib import Path

from pipeline.report import csv_table
from tests.report import made_up_run as made_up

DOCUMENT = Path(__file__).parents[2] / "docs" / "results-csv.md"


def test_every_column_is_documented_in_its_place() -> None:
    """A new column, a renamed one or one that is gone shows here."""
    documented = re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert documented == csv_table.header(made_up.summary(made_up.run()))
