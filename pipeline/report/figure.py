"""A chart of the report with the table that says the same."""

from dataclasses import dataclass, field

from markupsafe import Markup

from pipeline.report.sections.ladder_section import Table


@dataclass(frozen=True)
class Figure:
    """What the page shows under one title."""

    title: str
    svg: Markup  # of our own drawing, so not escaped
    note: str = ""
    table: Table | None = None
    texts: list[int] = field(default_factory=lambda: [0])  # the table's columns that hold text
