"""What changes of layout cost each stage, and where they are."""

from collections import defaultdict
from itertools import pairwise

from pipeline.analysis.attribution import way
from pipeline.analysis.summary import Digest, Row
from pipeline.records.diagnostics import LayoutChange
from pipeline.records.run_record import StageRecord
from pipeline.report import formatting as words
from pipeline.report.sections.ladder_section import Cell, Table

NAME_LETTERS = 70
WORTH_NAMING = 0.02  # share of the stage's time
MOST = 4  # stages in the sentences
RID = 10  # times fewer milliseconds than the stage before: then the changes are gone
GRAPH, GENERATED, UNKNOWN = "ONNX graph", "generated code", "unknown"
SPOTS = ("before", "between", "after")  # how a place in the order of the layers begins
TITLES = [
    ("stage", ""),
    ("changes", "kernels or copies a call that turn NCHW into NHWC or back, as far as they can be seen"),
    ("ms", "a call, of those whose time is known"),
    ("share", "of the stage's time in turns"),
    ("largest", "the one that takes longest"),
    ("where", "the layer, the two that it is between, or what a generated kernel does besides"),
]
TEXTS = [0, 4, 5]
NOTE = (
    "Found in the traces, in what a compiler wrote, and in the exported graph, which has no times. Of a graph that is "
    "replayed the same kernels are launched one by one, to see their layers."
)


def table(found: Digest) -> Table:
    """Every ranked stage that was looked through."""
    rows = [row for row in found.rows if row.ranked and row.stage.diagnostics and row.stage.profile]
    return Table(TITLES, [_cells(row) for row in rows])


def _cells(row: Row) -> list[Cell]:
    changes = listed(row.stage)
    cost, part = seconds(changes), share(row)
    largest = max(changes, key=lambda change: change.seconds_per_call or 0.0, default=None)
    return [
        Cell(words.clean(row.name)),
        Cell(said_count(changes), count(changes)),
        Cell(words.milliseconds(cost), cost),
        Cell(words.share(part), part),
        Cell(short(largest.name) if largest else ""),
        Cell(place(row.stage, largest) if largest else ""),
    ]


def listed(stage: StageRecord) -> list[LayoutChange]:
    """The changes that the record names, the longest first."""
    return sorted(
        stage.diagnostics.layout if stage.diagnostics else [], key=lambda change: -(change.seconds_per_call or 0.0)
    )


def count(changes: list[LayoutChange]) -> float:
    """How many run in a call: what a graph names is there a second time as the kernel that did it, if it ran."""
    return sum(change.times_per_call for change in changes if change.source != GRAPH)


def said_count(changes: list[LayoutChange]) -> str:
    """Such as "17", "2, and 3 in the graph" or "none found"."""
    ran, planned = count(changes), sum(change.source == GRAPH for change in changes)
    if not planned:
        return f"{ran:g}" if changes else "none found"
    return f"{ran:g}, and {planned} in the graph" if ran else f"{planned} in the graph"


def seconds(changes: list[LayoutChange]) -> float | None:
    """What those cost a call whose time is known; None where no change has one."""
    known = [change.seconds_per_call for change in changes if change.seconds_per_call is not None]
    return sum(known) if known else None


def share(row: Row) -> float | None:
    """Of the stage's time in turns, what its changes of layout take."""
    cost = seconds(listed(row.stage))
    return cost / row.seconds.value if cost is not None and row.seconds else None


def short(name: str) -> str:
    """A kernel's name without what follows its first words."""
    text = words.clean(name).removeprefix("void ").split("(")[0].split("<")[0] or words.clean(name)
    return text if len(text) <= NAME_LETTERS else f"{text[:NAME_LETTERS]}…"


def place(stage: StageRecord, change: LayoutChange) -> str:
    """Where a change is; where that is unknown, why."""
    if change.where != UNKNOWN:
        return words.clean(change.where)
    notes = [
        note.removeprefix("layers: ")
        for note in (stage.diagnostics.notes if stage.diagnostics else [])
        if "layers: " in note
    ]
    return f"{UNKNOWN}: {words.clean(notes[0]) if notes else 'the trace names no layer around its launch'}"


def sentences(found: Digest) -> list[str]:
    """The stages that pay most, and the rungs that were rid of it."""
    rows = [row for row in found.rows if row.ranked and row.stage.diagnostics]
    most = sorted((row for row in rows if _pays(row)), key=lambda row: -(share(row) or 0.0))[:MOST]
    rid = [_rid(before, after) for before, after in pairwise(way(found)[0]) if _pays(before)]
    return [*(_cost(row) for row in rows if row in most), *(line for line in rid if line)]


def _pays(row: Row) -> bool:
    return (share(row) or 0.0) >= WORTH_NAMING


def _cost(row: Row) -> str:
    """Such as "tf32 turns the layout 60 times a call, in 5.2 ms of 22.4 ms (23 %); most at decoder.3.0, 920 µs."."""
    changes, name = listed(row.stage), words.clean(row.name)
    assert row.seconds is not None
    whole = f"of {words.seconds(row.seconds.value)} ({words.share(share(row))})"
    taken = f"{words.seconds(seconds(changes))} {whole}"
    if all(change.source == GENERATED for change in changes):
        text = (
            f"{name}: generated kernels read in one layout and write in the other {count(changes):g} times a call, "
            f"in {taken}, a part of it for what else they do"
        )
    else:
        text = f"{name} turns the layout {count(changes):g} times a call, in {taken}"
    where, most = _worst(changes)
    return f"{text}; most {_at(where, changes)}, {words.seconds(most)}." if where != UNKNOWN else f"{text}."


def _at(where: str, changes: list[LayoutChange]) -> str:
    """The place in a sentence: a layer, a spot between two, or what a generated kernel does besides."""
    if where.split(" ")[0] in SPOTS:
        return where
    return f"in those for {where}" if all(change.source == GENERATED for change in changes) else f"at {where}"


def _worst(changes: list[LayoutChange]) -> tuple[str, float]:
    """The place where they take longest, and how long."""
    at: dict[str, float] = defaultdict(float)
    for change in changes:
        at[words.clean(change.where)] += change.seconds_per_call or 0.0
    where = max(at, key=lambda name: at[name])
    return where, at[where]


def _rid(before: Row, after: Row) -> str:
    """What the next rung did to changes that cost; empty where most of their time is still there."""
    old, new = listed(before.stage), listed(after.stage)
    if (seconds(new) or 0.0) * RID > (seconds(old) or 0.0):
        return ""
    text = f"{words.clean(before.name)} → {words.clean(after.name)}: from {count(old):g} changes a call"
    left = f"{said_count(new)} in {words.seconds(seconds(new))}" if seconds(new) is not None else said_count(new)
    return f"{text} in {words.seconds(seconds(old))} to {left}."


def changes(stage: StageRecord) -> Table:
    """Each change of one stage."""
    titles = [("what", ""), ("where", ""), ("seen in", ""), ("times", "a call"), ("µs", "a call")]
    return Table(titles, [_change(stage, change) for change in listed(stage)])


def _change(stage: StageRecord, change: LayoutChange) -> list[Cell]:
    cost = change.seconds_per_call
    return [
        Cell(short(change.name)),
        Cell(place(stage, change)),
        Cell(words.clean(change.source)),
        Cell(f"{change.times_per_call:g}", change.times_per_call),
        Cell(words.NOTHING if cost is None else words.significant(cost * 1e6), cost),
    ]
