"""The documented columns of results.csv are those that it has."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pipeline.analysis.summary import RunSummary, summarize
from pipeline.records.diagnostics import CountedBytes, LayoutChange
from pipeline.records.goals import TaskName
from pipeline.records.run_record import Execution, StageRecord
from pipeline.records.samples import HostPath
from pipeline.report import csv_table
from pipeline.report.sections import bits, bottleneck, cost, fusion, host, layout, memory, way
from pipeline.report.sections.ladder import headings_of, stage_columns
from pipeline.report.tables import Table, table_of
from tests.report import made_up_run as made_up

DOCUMENT = Path(__file__).parents[2] / "docs" / "results-csv.md"


def test_every_column_is_documented_in_its_place() -> None:
    documented = re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert documented == csv_table.rows(made_up.summary(made_up.run()))[0]


@cache
def whole() -> RunSummary:
    """A made-up run of which every table of stages has rows: it has a target, a path around the net and 8 bits."""
    asked = {"target_images_per_second": 400.0, "target_p99_ms": 300.0}
    run = made_up.with_settings(made_up.run(), report=asked)
    first, *others = run.stages
    counted, planned = CountedBytes(4, 2, 10, 9, 9, "ncu", {}), LayoutChange("Transpose", "up", "ONNX graph", 1.0, None)
    changed = replace(first.diagnostics, counted=counted, layout=[*first.diagnostics.layout, planned])
    return summarize(replace(run, stages=[replace(first, host_path=PATH, diagnostics=changed), *others, int8()]))


def int8() -> StageRecord:
    """A stage with 8 bits."""
    few = Execution("int8", {}, None, "ONNX Runtime", captured=False, fuses=True)
    return made_up.stage("int8", 9.0, 30.0, 10**9, "8 bits", execution=few)


PATH = [
    HostPath("as it is", [0.4], 100, 50),
    HostPath("uint8 in", [0.3], 100, 50),
    HostPath("classes out", [0.2], 100, 50),
    HostPath("ring", [0.1], 100, 50),
]
TABLES: dict[str, Callable[[RunSummary], Table | None]] = {
    "bottleneck": lambda summary: bottleneck.section(summary).table,
    "classes": lambda summary: next((drawn.table for drawn in way.classes_figures(summary)), None),
    "host time": lambda summary: table_of(host.columns(), host.lines(summary)),
    "around the net": lambda summary: host.path_section(summary).table,
    "layout": lambda summary: layout.section(summary).table,
    "fusion": lambda summary: fusion.section(summary).table,
    "memory": lambda summary: memory.section(summary).table,
    "cost": cost.cost_table,
    "GPUs for the target": lambda summary: cost.capacity(summary).table,
}


# that tables of every stage show as well, and so also have of those that a table leaves out
EVERY_STAGE = {
    column.csv for column in [*stage_columns(headings_of(whole())), *bottleneck.columns(whole().run.words)]
} | {"bottleneck"}


@pytest.fixture(scope="module")
def written() -> dict[str, dict[str, str]]:
    return {row["stage"]: row for row in made_up.csv_rows(whole())}


@pytest.mark.parametrize("name", TABLES)
def test_what_a_table_shows_of_a_stage_is_there(name: str, written: dict[str, dict[str, str]]) -> None:
    shown = TABLES[name](whole())
    assert shown is not None
    for cells in shown.rows:
        row = written[str(cells[0].value)]
        for column, cell in zip(shown.columns, cells, strict=True):
            assert not column.csv or row[column.csv] == ("" if cell.value is None else str(cell.value))
    named = [column.csv for column in shown.columns if column.csv]
    without = written.keys() - {str(cells[0].value) for cells in shown.rows}
    assert without
    assert named
    assert not any(written[stage][column] for stage in without for column in named if column not in EVERY_STAGE)


def test_the_figures_of_fewer_bits_are_there_of_every_stage(written: dict[str, dict[str, str]]) -> None:
    """The layers of those with 8 bits; what the file takes in bytes."""
    shown = bits.section(whole()).table
    found = {cells[0].value: dict(zip(shown.titles, cells, strict=True)) for cells in shown.rows}
    assert str(found["int8"]["layers"].value) == written["int8"]["layers_with_8_bits"]
    assert (written["int8"]["provider"], written["int8"]["precision"]) == ("ONNX Runtime", "int8")
    assert (written["compile"]["provider"], written["compile"]["precision"]) == ("Inductor", "fp16")
    assert (written["compile"]["layers_with_8_bits"], written["compile"]["file_bytes"]) == ("", "62000000")


def test_what_a_graph_plans_stands_beside_what_ran(written: dict[str, dict[str, str]]) -> None:
    shown = {cells[0].value: cells[1].text for cells in layout.section(whole()).table.rows}
    planned = {name: row["layout_changes_in_graph"] for name, row in written.items() if name in shown}
    assert any(count != "0" for count in planned.values())
    assert all(("in the graph" in shown[name]) == (count != "0") for name, count in planned.items())


@pytest.mark.parametrize("task", ["segmentation", "regression"])
def test_runs_that_know_little_have_the_same_columns(task: TaskName) -> None:
    known = made_up.with_settings(made_up.run(), task={"name": task})
    bare = made_up.with_settings(known, report={"gpu_hour_price": None})
    bare = replace(bare, stages=[], environment=None, measured_peaks=None, reference=None)
    asked = made_up.with_settings(known, report={"target_images_per_second": 400.0, "target_p99_ms": 300.0})
    first, *others = (csv_table.rows(summarize(run))[0] for run in (bare, known, asked))
    assert others == [first, first]
