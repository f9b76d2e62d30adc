"""Changes of layout, fusion and memory as parts of the page: each its sentences, figures and table."""

from dataclasses import dataclass, field

from pipeline.analysis.summary import Digest
from pipeline.report.figure import Figure
from pipeline.report.sections import fusion_section as fusion
from pipeline.report.sections import layout_section as layout
from pipeline.report.sections import memory_section as memory
from pipeline.report.sections.ladder_section import Table


@dataclass(frozen=True)
class Part:
    """What stands under one heading."""

    anchor: str
    title: str
    note: str  # what the figures are
    sentences: list[str]
    table: Table
    texts: list[int]  # the table's columns that hold text
    chart: Figure | None = None
    figures: list[Figure] = field(default_factory=list)  # below the table
    folded: list[Figure] = field(default_factory=list)  # of less weight: opened by who wants them


def spoken(found: Digest) -> dict[str, list[str]]:
    """The sentences alone, by title; what has none is left out."""
    said = {
        "Layout": layout.sentences(found),
        "Fusion": fusion.sentences(found),
        "Memory": memory.sentences(found),
    }
    return {title: lines for title, lines in said.items() if lines}


def explained(found: Digest) -> list[Part]:
    """Layout, fusion and memory, those that the record knows something of."""
    held = memory.table(found)
    first, others = memory.timelines(found)
    every = (
        Part("layout", "Layout", layout.NOTE, layout.sentences(found), layout.table(found), layout.TEXTS),
        Part(
            "fusion",
            "Fusion",
            fusion.NOTE,
            fusion.sentences(found),
            fusion.table(found),
            fusion.TEXTS,
            fusion.figure(found),
        ),
        Part(
            "memory",
            "Memory",
            memory.NOTE,
            memory.sentences(found),
            held,
            memory.texts(held),
            memory.figure(found),
            first,
            others,
        ),
    )
    return [part for part in every if part.table.rows]
