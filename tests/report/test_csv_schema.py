"""The documented columns of results.csv are those that it has."""

import csv
import io
import re
from pathlib import Path

from pipeline.report import csv_table
from pipeline.report.sections import bottleneck_section
from pipeline.report.tables import table_of
from tests.report import made_up_run as made_up

DOCUMENT = Path(__file__).parents[2] / "docs" / "results-csv.md"


def test_every_column_is_documented_in_its_place() -> None:
    """A new column, a renamed one or one that is gone shows here."""
    documented = re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert documented == csv_table.header(made_up.summary(made_up.run()))


def test_what_limits_a_stage_is_there_as_figures() -> None:
    """Those of the table "What limits each stage", unrounded."""
    summary = made_up.summary(made_up.run())
    rows = {row["stage"]: row for row in csv.DictReader(io.StringIO(csv_table.csv_text(summary)))}
    shown = table_of(bottleneck_section.columns(summary.run.words), summary.ranked)
    named = {
        "near arithmetic": "near_arithmetic_share",
        "near memory": "near_memory_share",
        "peak": "peak_flops_per_s",
        "of the peak": "peak_share",
        "of the bandwidth": "bandwidth_share",
        "GPU idle": "gpu_idle_share",
        "growth": "batch_slope",
        "by pixels": "pixel_slope",
    }
    assert set(shown.titles) == {"stage", "bottleneck", *named}
    for cells in shown.rows:
        row = rows[cells[0].text]
        for title, cell in zip(shown.titles[2:], cells[2:], strict=True):
            assert row[named[title]] == ("" if cell.value is None else str(cell.value))
    assert (rows["compile"]["precision"], rows["compile"]["file_bytes"]) == ("fp16", "62000000")
