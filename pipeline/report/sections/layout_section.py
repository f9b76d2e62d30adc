"""What changes of layout cost each stage, and where they are."""

from pipeline.analysis.layout import LayoutCost, changes_of, costs, gone, most_costly
from pipeline.analysis.summary import RunSummary
from pipeline.records.data_words import Words
from pipeline.records.diagnostics import LayoutChange, PlaceKind
from pipeline.records.run_record import StageRecord
from pipeline.report.formatting import NOTHING, clean, milliseconds, seconds, share, significant
from pipeline.report.tables import Cell, Column, Table, figure, names, table_of

NAME_LETTERS = 70
UNKNOWN = "unknown"
NOTE = (
    "Found in the traces, in the code that a compiler generated, and in the exported graph, which holds no times. The "
    "kernels of a captured graph are launched one by one, which shows their layers."
)


def columns(words: Words) -> list[Column[LayoutCost]]:
    """The price of each stage's changes."""
    turned = f"{words.channels_first} to {words.channels_last} or back"
    return [
        names("stage", lambda cost: clean(cost.stage.name)),
        Column(
            "changes",
            help=f"kernels or copies per call that convert {turned}, as far as they can be seen",
            cell=lambda cost: Cell(count_text(cost), cost.count),
            csv="layout_changes",
        ),
        Column(
            "ms",
            help="per call, of those whose time is known",
            cell=figure(lambda cost: cost.seconds, milliseconds),
            csv="layout_changes_s",
        ),
        Column(
            "share", help="of the stage's time", cell=figure(lambda cost: cost.share, share), csv="layout_changes_share"
        ),
        names(
            "largest",
            lambda cost: short(cost.largest.name) if cost.largest else "",
            "the one that takes longest",
            "layout_change_largest",
        ),
        names(
            "where",
            lambda cost: place(cost.stage.stage, cost.largest) if cost.largest else "",
            "the layer, the two layers around it, or what the generated kernel does besides",
            "layout_change_where",
        ),
    ]


PLANNED: Column[LayoutCost] = Column(
    "in the graph", cell=figure(lambda cost: cost.planned, str), csv="layout_changes_in_graph"
)  # what the table says in a clause beside the count


def searched(summary: RunSummary) -> list[LayoutCost]:
    """Every ranked stage that was searched for changes of layout."""
    return [cost for cost in costs(summary) if cost.stage.stage.profile]


def table(summary: RunSummary) -> Table:
    """What each of them pays."""
    return table_of(columns(summary.run.words), searched(summary))


def count_text(cost: LayoutCost) -> str:
    """Such as "17", "2, and 3 in the graph" or "none found"."""
    if not cost.planned:
        return f"{cost.count:g}" if cost.changes else "none found"
    return f"{cost.count:g}, and {cost.planned} in the graph" if cost.count else f"{cost.planned} in the graph"


def short(name: str) -> str:
    """A kernel's name without its template and its parameters."""
    text = clean(name).removeprefix("void ").split("(")[0].split("<")[0] or clean(name)
    return text if len(text) <= NAME_LETTERS else f"{text[:NAME_LETTERS]}…"


def place(stage: StageRecord, change: LayoutChange) -> str:
    """Where a change is; where that is unknown, why."""
    if change.where is not None:
        return clean(change.where)
    notes = stage.diagnostics.notes_on("layers") if stage.diagnostics else []
    return f"{UNKNOWN}: {clean(notes[0].text) if notes else 'the trace names no layer around its launch'}"


def sentences(summary: RunSummary) -> list[str]:
    """The stages that pay most, and the rungs that removed the changes."""
    return [*(_cost(cost) for cost in most_costly(summary)), *(_gone(*pair) for pair in gone(summary))]


def _cost(cost: LayoutCost) -> str:
    """Such as "tf32 changes the layout 60 times per call, in 5.2 ms of 22.4 ms (23 %); most at up.3, 920 µs."."""
    assert cost.stage.seconds is not None
    name, whole = clean(cost.stage.name), seconds(cost.stage.seconds.value)
    worst, most = cost.worst_place
    at = f"; most {_at(*worst)}, {seconds(most)}" if worst else ""
    if cost.generated_only:
        orders = f"{cost.stage.words.channels_first} and {cost.stage.words.channels_last}"
        return (
            f"{name}: {cost.count:g} generated kernels per call also convert between {orders}. They take "
            f"{seconds(cost.seconds)} of {whole} ({share(cost.share)}); since they do other work too, the conversion "
            f"costs at most that{at}."
        )
    taken = f"in {seconds(cost.seconds)} of {whole} ({share(cost.share)})"
    return f"{name} changes the layout {'once' if cost.count == 1 else f'{cost.count:g} times'} per call, {taken}{at}."


def _at(where: str, kind: PlaceKind | None) -> str:
    """The place in a sentence: a layer, a gap between two, or what a generated kernel does besides."""
    text = clean(where)
    return text if kind == "gap" else f"in those for {text}" if kind == "operators" else f"at {text}"


def _gone(before: LayoutCost, after: LayoutCost) -> str:
    text = f"{clean(before.stage.name)} → {clean(after.stage.name)}: from {before.count:g} changes per call"
    left = f"{count_text(after)} in {seconds(after.seconds)}" if after.seconds is not None else count_text(after)
    return f"{text} in {seconds(before.seconds)} to {left}."


def changes(stage: StageRecord) -> Table:
    """Each change of one stage, per call."""
    shown: list[Column[LayoutChange]] = [
        names("what", lambda change: short(change.name)),
        names("where", lambda change: place(stage, change)),
        names("seen in", lambda change: change.source),
        Column("times", cell=figure(lambda change: change.times_per_call, lambda times: f"{times:g}")),
        Column("µs", cell=microseconds),
    ]
    return table_of(shown, changes_of(stage))


def microseconds(change: LayoutChange) -> Cell:
    """Of one change."""
    cost = change.seconds_per_call
    return Cell(NOTHING if cost is None else significant(cost * 1e6), cost)
