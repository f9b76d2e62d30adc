"""Changes of layout, fusion and memory as parts of the page: each its sentences, figures and table."""

from dataclasses import dataclass, field

from pipeline.analysis.summary import RunSummary
from pipeline.report.figure import Figure
from pipeline.report.sections import fusion_section, layout_section, memory_section
from pipeline.report.tables import Table


@dataclass(frozen=True)
class Explanation:
    """What stands under one heading."""

    anchor: str
    title: str
    note: str  # what the figures are
    sentences: list[str]
    table: Table
    chart: Figure | None = None
    figures: list[Figure] = field(default_factory=list)  # below the table
    folded: list[Figure] = field(default_factory=list)  # of less weight: opened by who wants them


def spoken(summary: RunSummary) -> dict[str, list[str]]:
    """The sentences alone, by title; what has none is left out."""
    said = {
        "Layout": layout_section.sentences(summary),
        "Fusion": fusion_section.sentences(summary),
        "Memory": memory_section.sentences(summary),
    }
    return {title: lines for title, lines in said.items() if lines}


def explanations(summary: RunSummary) -> list[Explanation]:
    """Layout, fusion and memory, those that the record knows something of."""
    layout, fusion, memory = layout_section, fusion_section, memory_section
    first, others = memory.timelines(summary)
    every = (
        Explanation("layout", "Layout", layout.NOTE, layout.sentences(summary), layout.table(summary)),
        Explanation(
            "fusion",
            "Fusion",
            fusion.NOTE,
            fusion.sentences(summary),
            fusion.table(summary),
            figures=fusion.charts(summary),
        ),
        Explanation(
            "memory",
            "Memory",
            memory.NOTE,
            memory.sentences(summary),
            memory.table(summary),
            memory.chart(summary),
            first,
            others,
        ),
    )
    return [part for part in every if part.table.rows]
