"""The one place that writes reports to disk."""

from pathlib import Path

from pipeline.records.run_record import RunRecord
from pipeline.report.csv_table import csv_text
from pipeline.report.gallery import gallery
from pipeline.report.html import page
from pipeline.report.markdown import markdown
from pipeline.report.sweep import read_jobs, sweep_csv, sweep_markdown, sweep_page


def write_report(run: RunRecord, folder: Path) -> Path:
    """Draw report.html, report.md and results.csv of a run into its folder; the path of the first."""
    return _write(folder, page(run, gallery(run, folder)), markdown(run), csv_text(run))


def write_sweep_report(folder: Path) -> Path:
    """Draw one report of all jobs in the sweep's folder, also of those that left no record."""
    jobs = read_jobs(folder)
    return _write(folder, sweep_page(jobs), sweep_markdown(jobs), sweep_csv(jobs))


def _write(folder: Path, html: str, text: str, table: str) -> Path:
    (folder / "report.md").write_text(text, encoding="utf-8")
    (folder / "results.csv").write_text(table, encoding="utf-8")
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    return path
