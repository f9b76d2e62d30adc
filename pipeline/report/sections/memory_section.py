"""What a stage's memory is: weights, activations, workspace, context; and when it is held."""

from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from pipeline.analysis.summary import Digest, Row
from pipeline.records.diagnostics import MemoryTimeline
from pipeline.records.run_record import StageRecord
from pipeline.report import formatting as words
from pipeline.report.charts import bars as charts
from pipeline.report.charts import stacked_bars as stacks
from pipeline.report.figure import Figure
from pipeline.report.sections.ladder_section import Cell, Table

WEIGHTS, HELD, ACTIVATIONS, WORKSPACE = "weights", "held besides", "activations", "workspace"
RESERVE, CONTEXT, OUTSIDE = "in reserve", "context", "outside torch"
TITLES = {
    WEIGHTS: "of the stage's own net, where it is known",
    HELD: "between calls: the inputs, the untouched net; with the weights where those are unknown",
    ACTIVATIONS: "at the peak of a call; with the workspace where that can't be told apart",
    WORKSPACE: "what libraries work in, at the peak of a call",
    RESERVE: "reserved by torch but not allocated at the peak: its cache, and the pools of captured graphs",
    CONTEXT: "of the process, before its first tensor",
    OUTSIDE: "the rest of what the device sees: libraries, and runtimes with an allocator of their own",
}
ALLOCATED = (WEIGHTS, HELD, ACTIVATIONS, WORKSPACE)
PALETTE = dict(zip(TITLES, list(charts.CLASSES.values())[: len(TITLES)], strict=True))
LEAST_POINTS = 4  # of a timeline worth drawing: begin, peak and end are in the table
WORTH_NAMING = 0.05  # of the peak, by which a neighbour's part must differ
NEAR = 0.1  # of the peak
HOLDERS_NAMED = 6  # at most: then the layer that ran may be one that is not named
AFTER_A_LAYER = 3  # the reading, modulo four
MIB, GIB = 2**20, 2**30
NOTE = (
    "By torch's books of one call, read at every layer or change by change; the rest is what the device sees of the "
    "process. What a captured graph works in is its own pool: by parts where its kernels could be launched one by one, "
    "else in reserve. Another runtime's lies outside torch."
)
POOL = "nothing is allocated in a call: it lies in a pool, in reserve or outside torch"
BLIND = "no layer can be watched: workspace counts as activations, weights as held"


@dataclass(frozen=True)
class Parts:
    """Bytes of one stage by what they are; None where nobody knows."""

    row: Row
    amounts: dict[str, int | None]
    unknown: str  # why something isn't known

    @property
    def name(self) -> str:
        """The stage's, fit to be shown."""
        return words.clean(self.row.name)

    @property
    def allocated(self) -> int:
        """At the peak of one call."""
        return sum(self.amounts[part] or 0 for part in ALLOCATED)

    @property
    def total(self) -> int:
        """All that is known."""
        return sum(amount or 0 for amount in self.amounts.values())


def parts(row: Row) -> Parts:
    """A stage's memory taken apart."""
    timeline, memory = _timeline(row.stage), row.stage.memory
    if timeline is None:
        notes = [
            note for note in (row.stage.diagnostics.notes if row.stage.diagnostics else []) if note.startswith("memory")
        ]
        return Parts(row, dict.fromkeys(TITLES), words.clean("; ".join(notes)) or "no timeline was recorded")
    weights, workspace = timeline.weights_bytes, timeline.workspace_bytes
    pooled = workspace is None and timeline.activations_bytes == 0
    peak = timeline.held_bytes + timeline.activations_bytes + (workspace or 0)
    reserved, seen = (memory.reserved_peak_bytes, memory.process_bytes) if memory else (None, None)
    context = timeline.context_bytes
    outside = None if None in (seen, reserved, context) else (seen or 0) - (reserved or 0) - (context or 0)
    amounts = {
        WEIGHTS: weights,
        HELD: timeline.held_bytes - (weights or 0),
        ACTIVATIONS: None if pooled else timeline.activations_bytes,
        WORKSPACE: workspace,
        RESERVE: None if reserved is None else reserved - peak,
        CONTEXT: context,
        OUTSIDE: outside,
    }
    kept = {name: None if amount is None else max(0, amount) for name, amount in amounts.items()}
    unseen = words.clean(timeline.source) or POOL
    return Parts(row, kept, unseen if pooled else BLIND if workspace is None else "")


def _timeline(stage: StageRecord) -> MemoryTimeline | None:
    return stage.diagnostics.timeline if stage.diagnostics else None


def explained(found: Digest) -> list[Parts]:
    """Of every ranked stage that was looked into."""
    return [parts(row) for row in found.rows if row.ranked and row.stage.diagnostics]


def figure(found: Digest) -> Figure | None:
    """Every stage's memory as stacked bars."""
    every = [part for part in explained(found) if part.total]
    if not every:
        return None
    bars = [(part.name, {name: (amount or 0) / GIB for name, amount in part.amounts.items()}) for part in every]
    labels = ("What the device's memory holds", "GiB of the device")
    svg = stacks.stacked(bars, PALETTE, labels, [words.size(part.total) for part in every])
    return Figure(labels[0], Markup(svg), "The process on the device, at the peak of a call.")  # noqa: S704


def table(found: Digest) -> Table:
    """Every stage's memory; columns that no stage fills are left out."""
    every = explained(found)
    titles = [
        ("stage", ""), *TITLES.items(), ("the device sees", "of the whole process"),
        ("resident", "in the host's memory at its peak, where there is no device's"),
        ("why unknown", "what a dash stands for"),
    ]  # fmt: skip
    rows = [_cells(part) for part in every]
    kept = [at for at in range(len(titles)) if any(row[at].text not in ("", words.NOTHING) for row in rows)]
    return Table([titles[at] for at in kept], [[row[at] for at in kept] for row in rows])


def texts(shown: Table) -> list[int]:
    """The table's columns that hold text."""
    return [at for at, (title, _) in enumerate(shown.titles) if title in ("stage", "why unknown")]


def _cells(part: Parts) -> list[Cell]:
    memory = part.row.stage.memory
    seen = memory.process_bytes if memory else None
    resident = memory.host_peak_bytes if memory and seen is None else None
    sizes = [*part.amounts.values(), seen, resident]
    return [Cell(part.name), *(Cell(words.size(amount), amount) for amount in sizes), Cell(part.unknown)]


def sentences(found: Digest) -> list[str]:
    """What dominates, what each rung did to the peak, and what the winner needs of the device."""
    every = explained(found)
    known = [part for part in every if part.amounts[WORKSPACE] is not None]
    heavy = [_heavy(found, part) for part in known if (part.amounts[WORKSPACE] or 0) > part.allocated / 2]
    steps = [_step(found, before, after) for before, after in pairwise(known)]
    return [*heavy, *steps, *_replayed(every), *_device(found, every)]


def _heavy(found: Digest, part: Parts) -> str:
    """Workspace that is most of the peak: who asks for it, and in which layer."""
    layer = peak_layer(found, part.row.stage)
    work = {each.name: each.kind for each in found.run.reference.layers} if found.run.reference else {}
    machine = found.run.environment
    convolves = "Conv" in work.get(layer, "") and machine is not None and machine.cudnn is not None
    who = "cuDNN chose an algorithm" if convolves else "a library chose an algorithm"
    where = f" for {words.clean(layer)}" if layer else ""
    return (
        f"{part.name}: {words.size(part.amounts[WORKSPACE])} of the {words.size(part.allocated)} that are allocated at "
        f"the peak is workspace: {who}{where} that needs it.{_as_high(part.row.stage)}"
    )


def _as_high(stage: StageRecord) -> str:
    """How many other readings of the books come near the peak: it is not the fault of one layer alone."""
    amounts = timeline.allocated_bytes if (timeline := _timeline(stage)) else []
    near = sum(amount >= (1 - NEAR) * max(amounts) for amount in amounts) - 1
    return (
        f" {words.plural(near, 'other moment')} of the call came within {words.share(NEAR)} of it." if near > 0 else ""
    )


def peak_layer(found: Digest, stage: StageRecord) -> str:
    """The layer that ran at the peak: of those whose outputs were alive there, the last; empty if nobody knows.

    After the first reading there are four to a layer, the most since the last one and what stands: both before it and
    both after it. Only the third holds what the layer itself asked for.
    """
    timeline = _timeline(stage)
    if timeline is None or found.run.reference is None or len(timeline.peak_holders) >= HOLDERS_NAMED:
        return ""
    at = max(range(len(timeline.allocated_bytes)), key=timeline.allocated_bytes.__getitem__)
    if at % 4 != AFTER_A_LAYER:
        return ""
    names = [name for holder in timeline.peak_holders for name in holder.rsplit(":", 1)[0].split(", ")]
    return next((layer.name for layer in reversed(found.run.reference.layers) if layer.name in names), "")


def _step(found: Digest, before: Parts, after: Parts) -> str:
    """Such as "channels_last → amp: the peak falls, 2.62 GiB → 1.50 GiB: activations −1.12 GiB."."""
    changes = {name: (after.amounts[name] or 0) - (before.amounts[name] or 0) for name in ALLOCATED}
    named = [(name, by) for name, by in changes.items() if abs(by) > WORTH_NAMING * before.allocated]
    peaks = f"{words.size(before.allocated)} → {words.size(after.allocated)}"
    if not named:
        return f"{before.name} → {after.name}: the peak hardly changes, {peaks}."
    said = ", ".join(f"{name} {'−' if by < 0 else '+'}{words.size(abs(by))}" for name, by in named)
    text = f"the peak {_verb(before.allocated, after.allocated)}, {peaks}: {said}"
    old, new = peak_layer(found, before.row.stage), peak_layer(found, after.row.stage)
    moved = (
        f"; the peak is at {words.clean(new)} now, no longer at {words.clean(old)}"
        if old and new and old != new
        else ""
    )
    return f"{before.name} → {after.name}: {text}{moved}."


def _verb(before: int, after: int) -> str:
    if abs(after - before) <= WORTH_NAMING * before:
        return "stays about the same"
    return "falls" if after < before else "rises"


def _replayed(every: list[Parts]) -> list[str]:
    """Whose activations are those of kernels launched one by one, and where they lie in the stage itself."""
    names = [part.name for part in every if (timeline := _timeline(part.row.stage)) and timeline.replayed]
    text = "a call itself allocates nothing; the graph holds at all times what its kernels take, launched one by one"
    shown = "which is shown as activations and workspace, not in reserve"
    return [f"{words.listed(names)}: {text}, {shown}."] if names else []


def _device(found: Digest, every: list[Parts]) -> list[str]:
    """What the winner needs of the device beside what the baseline needs."""
    seen = {part.row.name: m.process_bytes for part in every if (m := part.row.stage.memory) and m.process_bytes}
    winner, baseline = found.ranking.winner or "", found.run.baseline
    if winner == baseline or not {winner, baseline} <= set(seen):
        return []
    text = f"{words.clean(winner)} takes {words.size(seen[winner])} of the device, {words.clean(baseline)}"
    return [f"{text} {words.size(seen[baseline])}."]


def timelines(found: Digest) -> tuple[list[Figure], list[Figure]]:
    """The baseline's and the winner's memory through one call, and then the others', where it could be watched."""
    rows = [
        row for row in found.rows if row.ranked and len(getattr(_timeline(row.stage), "seconds", [])) >= LEAST_POINTS
    ]
    first = [row for row in rows if row.name in (found.run.baseline, found.ranking.winner)]
    return [_over_time(found, row) for row in first], [_over_time(found, row) for row in rows if row not in first]


def _over_time(found: Digest, row: Row) -> Figure:
    timeline, name = _timeline(row.stage), words.clean(row.name)
    assert timeline is not None
    labels = (f"Memory of {name} through one call", "milliseconds of the host", "MiB allocated")
    amounts, layer = [amount / MIB for amount in timeline.allocated_bytes], words.clean(peak_layer(found, row.stage))
    peak = f"{words.size(max(timeline.allocated_bytes))}{f' at {layer}' if layer else ''}"
    svg = stacks.timeline(timeline.seconds, amounts, labels, peak)
    return Figure(labels[0], Markup(svg), f"{_watched(timeline)} {holders(row.stage)}")  # noqa: S704


def _watched(timeline: MemoryTimeline) -> str:
    """Which call the timeline is of and how it was watched; a record that doesn't say is of the stage's own layers."""
    source = words.clean(timeline.source) or "Read before and after every layer"
    return f"{source[0].upper()}{source[1:]}, in the time of the host, which runs ahead of the GPU."


def holders(stage: StageRecord) -> str:
    """The largest outputs alive at the peak."""
    timeline = _timeline(stage)
    if timeline is None or not timeline.peak_holders:
        return ""
    return f"Outputs alive at the peak: {words.clean('; '.join(timeline.peak_holders))}."
