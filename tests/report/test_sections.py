"""Rules that every section of the report keeps, whatever it is about."""

import pytest

from pipeline.report import html, markdown
from pipeline.report.tables import Section
from tests.report.test_csv_schema import whole

SECTIONS = {section.anchor: section for section in markdown.explaining(whole())}


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_page_and_markdown_have_the_section(section: Section) -> None:
    assert f'id="{section.anchor}"><summary><h3>{section.title}</h3>' in html.page(whole())
    in_markdown = bool(section.sentences) or (section.table_in_markdown and bool(section.table.rows))
    heading = f"<summary>{markdown.escape(section.title)}</summary>"
    assert (heading in markdown.markdown(whole())) == (in_markdown or section.gist_in_markdown)


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_tables_have_a_cell_for_each_title_and_name_the_method_first(section: Section) -> None:
    figures = [*section.charts, *section.after, *section.pairs, *section.others]
    for table in (section.table, *(figure.table for figure in figures if figure.table)):
        assert all(len(row) == len(table.titles) for row in table.rows)
        assert not table.rows or table.titles[0] in ("method", "rung", "layer", "level")


def test_every_kind_of_section_is_looked_at() -> None:
    expected = {"way", "bottlenecks", "time", "around", "roofline-1", "layout", "fusion", "memory", "timelines", "bits"}
    assert expected <= SECTIONS.keys()
