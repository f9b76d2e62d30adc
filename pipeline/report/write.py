"""The one place that writes reports to disk."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.analysis.summary import RunSummary
from pipeline.analysis.sweeps import Job
from pipeline.records.disk import write_text
from pipeline.report.csv_table import csv_text
from pipeline.report.drawn_files import PAGE, TABLE, TEXT
from pipeline.report.gallery import gallery
from pipeline.report.html import page
from pipeline.report.markdown import markdown
from pipeline.report.sweep import sweep_csv, sweep_markdown, sweep_page


def write_report(summary: RunSummary, folder: Path) -> Path:
    """Draw report.html, report.md and results.csv of a run into its folder; the path of the first."""
    html = page(summary, gallery(summary, folder), lambda path: (folder / path).is_file())
    return _write(folder, html, markdown(summary), csv_text(summary))


def write_sweep_report(jobs: Sequence[Job], folder: Path) -> Path:
    """Draw one report of all jobs into the sweep's folder, also of those that left no record."""
    return _write(folder, sweep_page(jobs), sweep_markdown(jobs), sweep_csv(jobs))


def _write(folder: Path, html: str, text: str, table: str) -> Path:
    write_text(text, folder / TEXT)
    write_text(table, folder / TABLE)
    path = folder / PAGE
    write_text(html, path)
    return path
