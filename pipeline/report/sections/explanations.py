"""Why: the parts of the page that explain the ladder, each folded behind its title and the one thing that it says."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pipeline.analysis.attribution import way
from pipeline.analysis.summary import RunSummary
from pipeline.report.figure import Figure
from pipeline.report.formatting import clean, listed
from pipeline.report.sections import (
    attribution_section,
    bits_section,
    bottleneck_section,
    fronts,
    fusion_section,
    host_path_section,
    host_time_section,
    layout_section,
    memory_section,
    roofline_section,
)
from pipeline.report.tables import Table


@dataclass(frozen=True)
class Explanation:
    """What stands under one heading, in the order of its fields."""

    anchor: str
    title: str
    gist: str = ""  # in a sentence, beside the title while the part is folded
    note: str = ""  # what the figures are
    sentences: list[str] = field(default_factory=list)
    charts: list[Figure] = field(default_factory=list)
    table: Table | None = None
    after: list[Figure] = field(default_factory=list)  # below the table
    pairs: list[Figure] = field(default_factory=list)  # of half the page's width, side by side
    others: list[Figure] = field(default_factory=list)  # the same, of less weight: in a box that scrolls

    @property
    def empty(self) -> bool:
        """Whether the record knows nothing of it."""
        drawn = [*self.charts, *self.after, *self.pairs, *self.others]
        return not (self.sentences or drawn or (self.table and self.table.rows))


def sentences(summary: RunSummary) -> dict[str, list[str]]:
    """The sentences alone, by title; what has none is left out."""
    why = [attribution_section.of_winner(summary, summary.winner)] if summary.winner else []
    said = {
        attribution_section.QUESTION: [*why, *attribution_section.step_sentences(summary)],
        host_path_section.TITLE: host_path_section.sentences(summary),
        "Layout": layout_section.sentences(summary),
        "Fusion": fusion_section.sentences(summary),
        "Memory": memory_section.sentences(summary),
        bits_section.TITLE: bits_section.sentences(summary),
    }
    return {title: lines for title, lines in said.items() if lines}


def explanations(summary: RunSummary) -> list[Explanation]:
    """All parts of which the record knows something."""
    before: tuple[Callable[[RunSummary], Explanation], ...] = (_way, _bottlenecks, _time, _around)
    after: tuple[Callable[[RunSummary], Explanation], ...] = (_layout, _fusion, _memory, _through_a_call, _bits)
    parts = [make(summary) for make in before] + _rooflines(summary) + [make(summary) for make in after]
    return [part for part in parts if not part.empty]


def _way(summary: RunSummary) -> Explanation:
    aside = way(summary)[1]
    winner = summary.winner
    note = "Each rung against the one before it. The rest is smaller changes, and time in no kernel: launches, waiting."
    left_out = f" Left out, as not measurably faster than the best earlier stage: {listed(aside)}." if aside else ""
    chart = attribution_section.way_figure(summary)
    return Explanation(
        "way",
        attribution_section.QUESTION,
        attribution_section.of_winner(summary, winner) if winner else "",
        f"{note}{left_out}" if chart else "",
        attribution_section.step_sentences(summary),
        [chart] if chart else [],
    )  # fmt: skip


def _bottlenecks(summary: RunSummary) -> Explanation:
    gist = bottleneck_section.in_short(summary.winner) if summary.winner else ""
    table = bottleneck_section.table(summary)
    return Explanation(
        "bottlenecks", "What limits each stage", gist, bottleneck_section.definition(summary), table=table
    )


def _time(summary: RunSummary) -> Explanation:
    chart = attribution_section.classes_figure(summary)
    line, table = host_time_section.shown(summary)
    return Explanation(
        "time",
        "Where the time goes",
        "By class of work on the device, and by what the host does meanwhile.",
        "" if line else host_time_section.NOTE,
        [line] if line else [],
        [chart] if chart else [],
        None if line else table,
    )


def _around(summary: RunSummary) -> Explanation:
    said, table = host_path_section.sentences(summary), host_path_section.table(summary)
    note = summary.run.words.put_into(host_path_section.NOTE) if table.rows else ""
    return Explanation("around", host_path_section.TITLE, _first(said), note, said, table=table if table.rows else None)


def _rooflines(summary: RunSummary) -> list[Explanation]:
    gist = "Each layer and level against what this device was measured to reach."
    found = roofline_section.rooflines(summary)
    return [
        Explanation(f"roofline-{at}", f"Layer by layer: {clean(name)}", gist, charts=figures)
        for at, (name, figures) in enumerate(found.items(), 1)
    ]


def _layout(summary: RunSummary) -> Explanation:
    said = layout_section.sentences(summary)
    return Explanation(
        "layout", "Layout", _first(said), layout_section.NOTE, said, table=layout_section.table(summary)
    )  # fmt: skip


def _fusion(summary: RunSummary) -> Explanation:
    said, charts, table = (
        fusion_section.sentences(summary),
        fusion_section.charts(summary),
        fusion_section.table(summary),
    )
    return Explanation("fusion", "Fusion", _first(said), fusion_section.NOTE, said, charts, table)


def _memory(summary: RunSummary) -> Explanation:
    said, chart = memory_section.sentences(summary), memory_section.chart(summary)
    table = memory_section.table(summary)
    after = fronts.memory_front(summary)
    return Explanation(
        "memory", "Memory", said[-1] if said else "", memory_section.NOTE, said, [chart] if chart else [], table,
        [after] if after else [],
    )  # fmt: skip


def _through_a_call(summary: RunSummary) -> Explanation:
    gist = "What torch's allocator holds from the beginning of a call to its end."
    first, others = memory_section.timelines(summary)
    return Explanation("timelines", "Memory through one call", gist, pairs=first, others=others)


def _bits(summary: RunSummary) -> Explanation:
    said = bits_section.sentences(summary)
    shown = bits_section.table(summary)
    return Explanation(
        "bits", bits_section.TITLE, _first(said), summary.run.words.put_into(bits_section.NOTE), said, table=shown
    )


def _first(said: list[str]) -> str:
    return said[0] if said else ""
