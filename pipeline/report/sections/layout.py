"""Changes of layout: what they cost each stage, and where they are."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from pipeline.analysis.attribution import way
from pipeline.analysis.stage_summary import StageSummary
from pipeline.analysis.summary import RunSummary
from pipeline.records.data_words import Words
from pipeline.records.diagnostics import LayoutChange, PlaceKind
from pipeline.records.run_record import StageRecord
from pipeline.report import WORDS
from pipeline.report.formatting import clean, method, microseconds, milliseconds, seconds, share
from pipeline.report.tables import Cell, Column, Section, Table, explained, methods, names, number, table_of

WORTH_NAMING = 0.02  # share of the stage's time
MOST = 4  # stages that are named
GONE = 10  # times fewer milliseconds than the stage before: then the changes are gone
NAME_LETTERS = 70
NOTE: str = WORDS["layout"]["note"]


@dataclass(frozen=True)
class LayoutCost:
    """The changes of layout of one stage, the longest first, and what they take of a call."""

    stage: StageSummary
    changes: list[LayoutChange]

    @property
    def count(self) -> float:
        """The number of changes in a call; a graph names again those that ran as kernels."""
        return sum(change.times_per_call for change in self.changes if change.source != "ONNX graph")

    @property
    def planned(self) -> int:
        """The number that the exported graph names."""
        return sum(change.source == "ONNX graph" for change in self.changes)

    @property
    def seconds(self) -> float | None:
        """Seconds of a call in those whose time is known; None where no change has one."""
        known = [change.seconds_per_call for change in self.changes if change.seconds_per_call is not None]
        return sum(known) if known else None

    @property
    def share(self) -> float | None:
        """Share of the stage's time; None where its profile was taken at another pace."""
        if self.seconds is None or not self.stage.seconds or self.stage.bottleneck.reason == "other pace":
            return None
        return self.seconds / self.stage.seconds.value


def section(summary: RunSummary) -> Section:
    """Return what the changes of layout cost."""
    said = sentences(summary)
    table = table_of(columns(summary.run.words), searched(summary))
    return Section("layout", "Layout", said[0] if said else "", NOTE, said, table=table)


def cost_of(stage: StageSummary) -> LayoutCost:
    """Return the changes of one stage."""
    return LayoutCost(stage, sorted(stage.stage.explained.layout, key=lambda change: -(change.seconds_per_call or 0.0)))


def searched(summary: RunSummary) -> list[LayoutCost]:
    """Return every ranked stage that was searched for changes of layout."""
    return [cost_of(stage) for stage in summary.ranked if stage.stage.diagnostics and stage.stage.profile]


def columns(words: Words) -> list[Column[LayoutCost]]:
    """Return the price of each stage's changes."""

    def first(read: Callable[[StageRecord, LayoutChange], str]) -> Callable[[LayoutCost], str]:
        return lambda cost: read(cost.stage.stage, cost.changes[0]) if cost.changes else ""

    shown: list[Column[LayoutCost]] = [
        methods(lambda cost: cost.stage.name),
        Column("changes", lambda cost: Cell(count_text(cost), cost.count), csv="layout_changes"),
        number("ms", lambda cost: cost.seconds, milliseconds, "layout_changes_s"),
        number("share", lambda cost: cost.share, share, "layout_changes_share"),
        names("largest", first(lambda _, change: short(change.name)), "layout_change_largest"),
        names("where", first(place), "layout_change_where"),
    ]
    return explained("layout", shown, turned=f"{words.channels_first} to {words.channels_last} or back")


# What the table says in a clause beside the count.
PLANNED: Column[LayoutCost] = number("in the graph", lambda cost: cost.planned, str, "layout_changes_in_graph")


def count_text(cost: LayoutCost) -> str:
    """Return text such as "17", "2, and 3 in the graph" or "none found"."""
    if not cost.planned:
        return f"{cost.count:g}" if cost.changes else "none found"
    return f"{cost.count:g}, and {cost.planned} in the graph" if cost.count else f"{cost.planned} in the graph"


def short(name: str) -> str:
    """Return a kernel's name without its template and its parameters."""
    text = clean(name).removeprefix("void ").split("(")[0].split("<")[0] or clean(name)
    return text if len(text) <= NAME_LETTERS else f"{text[:NAME_LETTERS]}…"


def place(stage: StageRecord, change: LayoutChange) -> str:
    """Return where a change is; where that is unknown, why."""
    if change.where is not None:
        return clean(change.where)
    notes = stage.explained.notes_on("layers")
    return f"unknown: {clean(notes[0].text) if notes else 'the trace names no layer around its launch'}"


def sentences(summary: RunSummary) -> list[str]:
    """Return the stages that pay most, in the ladder's order, and the rungs that removed the changes."""
    every = [cost_of(stage) for stage in summary.ranked]
    paying = [cost for cost in every if (cost.share or 0.0) >= WORTH_NAMING]
    most = sorted(paying, key=lambda cost: -(cost.share or 0.0))[:MOST]
    said = [_cost(cost) for cost in every if cost in most]
    for before, after in pairwise(map(cost_of, way(summary)[0])):
        if (before.share or 0.0) >= WORTH_NAMING and (after.seconds or 0.0) * GONE <= (before.seconds or 0.0):
            first = f"from {before.count:g} changes per call in {seconds(before.seconds)}"
            left = "" if after.seconds is None else f" in {seconds(after.seconds)}"
            both = f"{method(before.stage.name)} → {method(after.stage.name)}"
            said.append(f"{both}: {first} to {count_text(after)}{left}.")
    return said


def _cost(cost: LayoutCost) -> str:
    """Return text such as "tf32 changes the layout 60 times per call, in 5.2 ms of 22.4 ms (23 %); most at up.3, …"."""
    assert cost.stage.seconds is not None
    at: dict[tuple[str, PlaceKind | None], float] = defaultdict(float)
    for change in cost.changes:
        at[change.where or "", change.where_kind] += change.seconds_per_call or 0.0
    where, kind = worst = max(at, key=lambda place: at[place])
    text = clean(where)  # a layer, a gap between two, or what a generated kernel does besides
    placed = text if kind == "gap" else f"in those for {text}" if kind == "operators" else f"at {text}"
    most = f"; most {placed}, {seconds(at[worst])}" if where else ""
    taken = f"{seconds(cost.seconds)} of {seconds(cost.stage.seconds.value)} ({share(cost.share)})"
    if all(change.source == "generated code" for change in cost.changes):
        orders = f"{cost.stage.words.channels_first} and {cost.stage.words.channels_last}"
        return (
            f"{method(cost.stage.name)}: {cost.count:g} generated kernels per call also convert between {orders}. They "
            f"take {taken}; since they do other work too, the conversion costs at most that{most}."
        )
    often = "once" if cost.count == 1 else f"{cost.count:g} times"
    return f"{method(cost.stage.name)} changes the layout {often} per call, in {taken}{most}."


def changes(stage: StageSummary) -> Table:
    """Return each change of one stage, per call."""
    shown: list[Column[LayoutChange]] = [
        names("what", lambda change: short(change.name)),
        names("where", lambda change: place(stage.stage, change)),
        names("seen in", lambda change: change.source),
        number("times", lambda change: change.times_per_call, "{:g}".format),
        number("µs", lambda change: change.seconds_per_call, microseconds),
    ]
    return table_of(shown, cost_of(stage).changes)
