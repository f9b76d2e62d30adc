"""What a stage's memory is: weights, activations, workspace, context; and when it is held."""

from itertools import pairwise

from markupsafe import Markup

from pipeline.reasons import MemoryTimeline
from pipeline.records import StageRecord
from pipeline.report import charts, words
from pipeline.report.digest import Digest, Row
from pipeline.report.figure import Figure
from pipeline.report.ladder import Cell, Table

PARTS = ("weights", "held besides", "activations", "workspace", "context")
PALETTE = dict(zip(PARTS, list(charts.CLASSES.values())[: len(PARTS)], strict=True))
LEAST_POINTS = 4  # of a timeline worth drawing: begin, peak and end are in the table
WORTH_NAMING = 0.05  # of the peak, by which a neighbour's part must differ
MIB, GIB = 2**20, 2**30


def figures(found: Digest) -> list[Figure]:
    """The parts of every stage's memory, and the timelines of the baseline and of the first that is otherwise."""
    rows = [(row, why.timeline) for row in found.rows if row.ranked and (why := row.stage.why) and why.timeline]
    if not rows:
        return []
    bars = [(words.clean(row.name), {name: amount / GIB for name, amount in parts(t).items()}) for row, t in rows]
    svg = charts.stacked(bars, PALETTE, ("Memory at the peak by what it is", "GiB at the peak of a call"))
    whole = Figure("Memory: what the peak is made of", Markup(svg), note(rows), _table(rows))  # noqa: S704
    drawn = [(row, timeline) for row, timeline in rows if len(timeline.seconds) >= LEAST_POINTS]
    return [whole, *(_over_time(row, timeline) for row, timeline in (drawn[:1] + drawn[-1:] if drawn[1:] else drawn))]


def parts(timeline: MemoryTimeline) -> dict[str, int]:
    """Bytes by what they are; what isn't known is left out."""
    weights = timeline.weights_bytes or 0
    found = {
        "weights": weights,
        "held besides": max(0, timeline.held_bytes - weights),
        "activations": timeline.activations_bytes,
        "workspace": timeline.workspace_bytes or 0,
        "context": timeline.context_bytes or 0,
    }
    return {name: amount for name, amount in found.items() if amount}


def _table(rows: list[tuple[Row, MemoryTimeline]]) -> Table:
    titles = [
        ("stage", ""), ("weights", "of the stage's own net, where it is known"),
        ("held besides", "between calls: the inputs, the untouched net, captured graphs; with the weights if unknown"),
        ("activations", "at the peak"), ("workspace", "what libraries work in, at the peak"),
        ("context", "of the process, before its first tensor"), ("the device sees", "of the process, caches included"),
    ]  # fmt: skip
    return Table(titles, [_cells(row, timeline) for row, timeline in rows])


def _cells(row: Row, timeline: MemoryTimeline) -> list[Cell]:
    amounts: list[int | None] = [
        timeline.weights_bytes,
        timeline.held_bytes - (timeline.weights_bytes or 0),
        timeline.activations_bytes,
        timeline.workspace_bytes,
        timeline.context_bytes,
        row.stage.memory.process_bytes if row.stage.memory else None,
    ]
    return [Cell(words.clean(row.name)), *(Cell(words.size(amount), amount) for amount in amounts)]


def note(rows: list[tuple[Row, MemoryTimeline]]) -> str:
    """What dominates, and what each rung did to it where both sides are known."""
    lines = []
    for row, timeline in rows:
        peak = sum(parts(timeline).values())
        if timeline.workspace_bytes and timeline.workspace_bytes > peak / 2:
            lines.append(
                f"{words.clean(row.name)}: {words.size(timeline.workspace_bytes)} of {words.size(peak)} is workspace, "
                "asked for by the algorithms that the library chose."
            )
    known = [(row, timeline) for row, timeline in rows if timeline.workspace_bytes is not None]
    for (before, old), (after, new) in pairwise(known):
        if said := moved(parts(old), parts(new)):
            lines.append(f"{words.clean(before.name)} → {words.clean(after.name)}: {said}.")
    return " ".join(lines)


def moved(old: dict[str, int], new: dict[str, int]) -> str:
    """Which parts changed by what is worth naming, such as "activations −1.1 GiB"."""
    changes = {name: new.get(name, 0) - old.get(name, 0) for name in PARTS}
    least = WORTH_NAMING * sum(old.values())
    named = [(name, amount) for name, amount in changes.items() if abs(amount) > least]
    return ", ".join(f"{name} {'−' if amount < 0 else '+'}{words.size(abs(amount))}" for name, amount in named)


def _over_time(row: Row, timeline: MemoryTimeline) -> Figure:
    name = words.clean(row.name)
    labels = (f"{name}: allocated through one call", "milliseconds of the host", "MiB")
    svg = charts.timeline(timeline.seconds, [amount / MIB for amount in timeline.allocated_bytes], labels)
    text = "Read before and after every layer, in the time of the host, which runs ahead of the GPU."
    return Figure(f"Memory of {name} through one call", Markup(svg), f"{text} {holders(row.stage)}")  # noqa: S704


def holders(stage: StageRecord) -> str:
    """The largest outputs alive at the peak."""
    timeline = stage.why.timeline if stage.why else None
    if timeline is None or not timeline.peak_holders:
        return ""
    return f"Outputs alive at the peak: {words.clean('; '.join(timeline.peak_holders))}."
