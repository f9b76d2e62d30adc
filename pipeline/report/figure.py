"""A chart of the report with the table that says the same."""

from dataclasses import dataclass

from markupsafe import Markup

from pipeline.report.tables import Table


@dataclass(frozen=True)
class Figure:
    """What the page shows under one title."""

    title: str
    svg: Markup  # drawn by `pipeline.report.charts`, whose text is escaped
    note: str = ""
    table: Table | None = None


def drawn(title: str, svg: str, note: str = "", table: Table | None = None) -> Figure:
    """A figure of a chart whose text matplotlib has escaped."""
    return Figure(title, Markup(svg), note, table)  # noqa: S704 - escaped by matplotlib
