"""Tables as lists of columns: one more column is one line, and leaving one out takes its style along."""

from dataclasses import replace

from pipeline.analysis.stage_summary import StageSummary
from pipeline.report.formatting import significant
from pipeline.report.sections.ladder import Headings, ladder, shown_in, stage_columns
from pipeline.report.tables import Cell, Column, Table, names, number, table_of
from tests.report import made_up_run as made_up

RUN = made_up.run()
Item = tuple[str, float | None, str]
COLUMNS: list[Column[Item]] = [
    names("name", lambda item: item[0]),
    number("time s", lambda item: item[1], significant, "of a call"),
    names("note", lambda item: item[2]),
]


def kinds(table: Table) -> dict[str, str]:
    """Each heading's kind."""
    return {heading.title: heading.kind for heading in table.headings}


def test_a_column_knows_its_heading_and_its_cells() -> None:
    table = table_of(COLUMNS, [("a", 2.0, "x"), ("b", None, "")])
    assert table.titles == ["name", "time s", "note"]
    assert [row[1] for row in table.rows] == [Cell("2.00", 2.0), Cell("–")]


def test_leaving_out_an_empty_column_restyles_no_other() -> None:
    table = table_of(COLUMNS, [("a", None, "x")])
    assert kinds(table.without_empty_columns) == {"name": "text", "note": "text"}


def test_the_ladder_of_a_run_without_any_ranked_stage_keeps_its_outcomes_as_text() -> None:
    bare = ladder(made_up.summary(made_up.run(stages=made_up.unwell())))
    whole = ladder(made_up.summary(RUN))
    assert "× eager" in whole.titles
    assert "× eager" not in bare.titles
    assert kinds(bare)["outcome"] == kinds(whole)["outcome"] == "text"
    page = made_up.page(made_up.run(stages=made_up.unwell()))
    start = page.index('id="ladder-table"')
    assert '<th scope="col" aria-sort="none" class="text"><button type="button">outcome<' in page[start : start + 3000]


def idle_watts(stage: StageSummary) -> float | None:
    """Of the idle device."""
    return stage.stage.energy.idle_watts if stage.stage.energy else None


def test_one_more_column_is_one_line() -> None:
    more: Column[StageSummary] = number("watts W", idle_watts, significant, "idle", "idle_w")
    columns = [*stage_columns(Headings()), more]
    assert shown_in("report", columns)[-1].title == "watts W"
    assert more not in shown_in("terminal", columns)
    (stage,) = made_up.summary(made_up.run(stages=RUN.stages[:1])).stages
    assert more.cell(stage) == Cell("75.0", 75.0)


def test_every_view_takes_the_same_columns() -> None:
    columns = stage_columns(Headings())
    for view in ("terminal", "sweep"):
        assert shown_in(view, columns)
        assert all(column in shown_in("report", columns) for column in shown_in(view, columns))
    csv = [column.csv for column in columns if column.csv]
    assert len(csv) == len(set(csv))


def test_a_stage_that_is_not_ranked_sorts_last() -> None:
    summary = made_up.summary(made_up.run(stages=[RUN.stages[0], *made_up.unwell()]))
    *_, black = ladder(summary).rows
    numbers = [
        cell.value for heading, cell in zip(ladder(summary).headings, black, strict=True) if heading.kind == "number"
    ]
    assert set(numbers) == {None}
    assert black[0] == replace(black[0], value="black")
