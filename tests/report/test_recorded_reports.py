"""The recorded runs' reports are those that their records give today."""

from pathlib import Path

import pytest

from pipeline.analysis.summary import summarize
from pipeline.records import codec
from pipeline.report.csv_table import csv_text
from pipeline.report.markdown import markdown

DOCS = Path(__file__).parents[2] / "docs"
RECORDED = sorted(path.parent for path in DOCS.rglob("results.json") if path.with_name("report.md").exists())


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: str(folder.relative_to(DOCS)))
def test_a_recorded_report_is_what_its_record_gives(folder: Path) -> None:
    """`python -m pipeline.report FOLDER` draws it anew."""
    summary = summarize(codec.load(folder))
    assert (folder / "report.md").read_text(encoding="utf-8") == markdown(summary)
    table = folder / "results.csv"
    assert not table.exists() or table.read_text(encoding="utf-8") == csv_text(summary)
