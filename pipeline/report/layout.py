"""What changes of layout cost each stage, and where they are."""

from pipeline.reasons import LayoutChange
from pipeline.records import StageRecord
from pipeline.report import words
from pipeline.report.digest import Digest, Row
from pipeline.report.ladder import Cell, Table

NAME_LETTERS = 70
WORTH_NAMING, MOST = 0.02, 4  # share of the kernels' time; stages in the sentence
TITLES = [
    ("stage", ""),
    ("changes", "kernels or copies a call that turn NCHW into NHWC or back, as far as they can be seen"),
    ("ms", "a call, of those whose time is known"),
    ("share", "of the kernels' time in the profile"),
    ("largest", ""),
    ("where", "the layer, or what a generated kernel does besides"),
]


def table(found: Digest) -> Table:
    """Every ranked stage that was looked through."""
    rows = [row for row in found.rows if row.ranked and row.stage.why and row.stage.profile]
    return Table(TITLES, [_cells(row, row.stage.why.layout) for row in rows if row.stage.why])


def _cells(row: Row, changes: list[LayoutChange]) -> list[Cell]:
    cost, count = seconds(changes), sum(change.times_per_call for change in changes)
    largest = max(changes, key=lambda change: change.seconds_per_call or 0.0, default=None)
    share = cost / whole if (whole := profiled(row.stage)) else None
    return [
        Cell(words.clean(row.name)),
        Cell(f"{count:g}" if changes else "none found", count),
        Cell(words.milliseconds(cost) if changes else words.NOTHING, cost),
        Cell(words.share(share) if changes else words.NOTHING, share),
        Cell(short(largest.name) if largest else ""),
        Cell(words.clean(largest.where) if largest else ""),
    ]


def seconds(changes: list[LayoutChange]) -> float:
    """What those cost a call whose time is known."""
    return sum(change.seconds_per_call or 0.0 for change in changes)


def profiled(stage: StageRecord) -> float:
    """Seconds a call of all kernels, or operators, in the profile."""
    return sum(kernel.seconds_per_call for kernel in stage.profile.kernels) if stage.profile else 0.0


def short(name: str) -> str:
    """A kernel's name without what follows its first words."""
    text = words.clean(name).removeprefix("void ").split("(")[0].split("<")[0] or words.clean(name)
    return text if len(text) <= NAME_LETTERS else f"{text[:NAME_LETTERS]}…"


def sentence(found: Digest) -> str:
    """The stages that pay most, and how far the list can be trusted."""
    trust = (
        "From the traces, from what a compiler wrote, and from the exported graph; a replayed graph hides its layers."
    )
    paying = []
    for row in found.rows:
        listed, whole = row.stage.why.layout if row.stage.why else [], profiled(row.stage)
        if row.ranked and whole and (cost := seconds(listed)) >= WORTH_NAMING * whole:
            count = sum(change.times_per_call for change in listed)
            paying.append((cost / whole, f"{words.clean(row.name)} {words.seconds(cost)} for {count:g} a call"))
    said = [
        f"{text} ({words.share(share)} of its kernels' time)" for share, text in sorted(paying, reverse=True)[:MOST]
    ]
    return f"They cost {words.listed(said)}. {trust}" if said else trust


def changes(stage: StageRecord) -> Table:
    """Each change of one stage."""
    listed = stage.why.layout if stage.why else []
    titles = [("what", ""), ("where", ""), ("seen in", ""), ("times", "a call"), ("µs", "a call")]
    return Table(
        titles,
        [
            [
                Cell(short(change.name)),
                Cell(words.clean(change.where)),
                Cell(words.clean(change.source)),
                Cell(words.significant(change.times_per_call), change.times_per_call),
                Cell(
                    words.NOTHING
                    if change.seconds_per_call is None
                    else words.significant(change.seconds_per_call * 1e6),
                    change.seconds_per_call,
                ),
            ]
            for change in listed
        ],
    )
