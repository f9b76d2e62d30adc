"""Recorded runs' reports are those that their records give today."""

import csv
import io
import math
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.analysis.summary import summarize
from pipeline.records import codec
from pipeline.report.csv_table import csv_text
from pipeline.report.markdown import markdown
from pipeline.report.terminal import first_screen
from tests.house.recompute import statements
from tests.report import made_up_run as made_up

DOCS = Path(__file__).parents[2] / "docs"
RECORDED = sorted(path.parent for path in DOCS.rglob("report.md"))


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: str(folder.relative_to(DOCS)))
def test_a_recorded_report_is_what_its_record_gives(folder: Path) -> None:
    packed = folder / "results.json.xz"
    summary = summarize(made_up.recorded(packed) if packed.exists() else codec.load(folder))
    assert (folder / "report.md").read_text(encoding="utf-8") == markdown(summary)
    table = folder / "results.csv"
    if table.exists():
        assert differing(table.read_text(encoding="utf-8"), csv_text(summary)) == []
    first, _, _ = markdown(summary).partition("<details>")
    assert all(line.count("|") <= 7 for line in first.splitlines() if line.startswith("|")), "more than six columns"
    shown = made_up.printed(first_screen(summary)).rstrip("\n").split("\n")
    assert len(shown) < 40, "with the report's path below it is more than forty lines"
    assert all(len(line) <= 80 or "python -m" in line for line in shown), "but for a command, which is copied"


def differing(table: str, other: str) -> list[tuple[str, str]]:
    """The cells in which two CSVs differ by more than the last digits, which Python sums otherwise from 3.12 on."""
    cells = [[cell for row in csv.reader(io.StringIO(text)) for cell in row] for text in (table, other)]
    return [(one, two) for one, two in zip(*cells, strict=True) if one != two and not close(one, two)]


def close(one: str, two: str) -> bool:
    try:
        return math.isclose(float(one), float(two), rel_tol=1e-9)
    except ValueError:  # no number
        return False


def test_of_many_stages_the_skipped_ones_are_named_in_a_line() -> None:
    shown = made_up.printed(first_screen(summarize(codec.load(DOCS / "cpu" / "everything"))))
    assert "skipped: tf32, cuda_graph, compile_max, fused, fp8, tensorrt and torchao_fp8" in shown
    assert shown.count("tf32") == 1
    assert "OpenVINO (int8) failed: no layer can be int8" in shown


def test_the_figures_of_a_run_that_did_not_finish_and_drifted_are_recomputed(tmp_path: Path) -> None:
    run = replace(codec.load(DOCS / "cpu" / "everything"), finished=False, drift=-0.2)
    (codec.save(run, tmp_path).parent / "report.md").write_text(markdown(summarize(run)), encoding="utf-8")
    assert [statement for statement in statements(tmp_path) if not statement.agrees] == []
